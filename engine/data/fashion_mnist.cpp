#include "engine/data/fashion_mnist.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "kernels/error.h"

namespace zerosharp {
namespace {

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;
constexpr int64_t kSide = 28;                     // pixels
constexpr int64_t kMostBytes = int64_t{1} << 31;  // Fashion-MNIST has 47 MB

/// The file's bytes; zlib reads plain files too.
std::vector<uint8_t> read_all(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail_config("data.path: ", path, " cannot be opened");
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> chunk(1 << 20);
  while (true) {
    const int got = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    int status = Z_OK;
    gzerror(file.get(), &status);  // Z_BUF_ERROR: the file ends before its compressed stream does
    if (got < 0 || status == Z_BUF_ERROR) {
      fail_config("data.path: ", path, " is damaged or cut short; scripts/prepare-corpus ",
                  "data --fashion-mnist brings it anew when its folder is removed");
    }
    if (got == 0) break;
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + got);
    if (static_cast<int64_t>(bytes.size()) > kMostBytes) {
      fail_config("data.path: ", path, " is larger than any Fashion-MNIST file");
    }
  }
  return bytes;
}

std::string find_file(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    const auto path = std::filesystem::path(folder) / (name + ending);
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path.string();
  }
  fail_config("data.path: ", folder, " holds no ", name, " (plain or .gz); scripts/prepare-corpus ",
              "data --fashion-mnist brings it");
}

uint32_t big_endian(const std::vector<uint8_t>& bytes, size_t at) {
  return uint32_t{bytes[at]} << 24 | uint32_t{bytes[at + 1]} << 16 | uint32_t{bytes[at + 2]} << 8 |
         uint32_t{bytes[at + 3]};
}

/// Checks magic and size and returns the dimensions; the payload follows them.
std::vector<int64_t> read_header(const std::vector<uint8_t>& bytes, const std::string& path,
                                 uint32_t magic, size_t num_dimensions) {
  const size_t header = 4 * (num_dimensions + 1);
  if (bytes.size() < header) {
    fail_config("data.path: ", path, " is truncated: ", bytes.size(), " bytes, its header has ",
                header);
  }
  if (big_endian(bytes, 0) != magic) {
    fail_config("data.path: ", path, " is no such idx file: magic ", big_endian(bytes, 0),
                " instead of ", magic);
  }
  std::vector<int64_t> dimensions;
  int64_t payload = 1;
  for (size_t i = 0; i < num_dimensions; ++i) {
    dimensions.push_back(big_endian(bytes, 4 * (i + 1)));
    if (dimensions.back() > kMostBytes / std::max<int64_t>(payload, 1)) {
      fail_config("data.path: ", path, " declares impossible dimensions");
    }
    payload *= dimensions.back();
  }
  if (static_cast<int64_t>(bytes.size() - header) != payload) {
    fail_config("data.path: ", path, " has ", bytes.size() - header, " bytes of data but declares ",
                payload);
  }
  return dimensions;
}

}  // namespace

LabelledImages read_fashion_mnist(const std::string& folder, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string images_path = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, prefix + "-labels-idx1-ubyte");
  std::vector<uint8_t> images = read_all(images_path);
  std::vector<uint8_t> labels = read_all(labels_path);
  const auto dimensions = read_header(images, images_path, kImagesMagic, 3);
  const auto label_count = read_header(labels, labels_path, kLabelsMagic, 1)[0];
  if (label_count != dimensions[0]) {
    fail_config("data.path: ", images_path, " has ", dimensions[0], " images but ", labels_path,
                " has ", label_count, " labels");
  }
  if (dimensions[1] != kSide || dimensions[2] != kSide) {
    fail_config("data.path: ", images_path, " has images of ", dimensions[1], " x ", dimensions[2],
                " pixels instead of ", kSide, " x ", kSide);
  }
  LabelledImages result{dimensions[0], dimensions[1], dimensions[2], {}, {}};
  result.pixels.assign(images.begin() + 16, images.end());
  result.labels.assign(labels.begin() + 8, labels.end());
  const auto worst = std::max_element(result.labels.begin(), result.labels.end());
  if (worst == result.labels.end()) fail_config("data.path: ", labels_path, " holds no label");
  if (*worst > 9) {
    fail_config("data.path: ", labels_path, " holds label ", int{*worst}, "; labels are 0 to 9");
  }
  return result;
}

}  // namespace zerosharp

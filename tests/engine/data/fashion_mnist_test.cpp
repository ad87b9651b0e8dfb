// Images read back from files made here, and a message for each damaged one.
#include "engine/data/fashion_mnist.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/engine/data/data_fixture.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class FashionMnist : public DataTest {
 protected:
  static std::string big_endian(uint32_t value) {
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
    return bytes;
  }
  static std::string images(uint32_t count, uint32_t magic = 0x803, uint32_t side = 28) {
    std::string bytes = big_endian(magic) + big_endian(count) + big_endian(side) + big_endian(side);
    for (uint32_t i = 0; i < count * side * side; ++i) bytes += static_cast<char>(i % 251);
    return bytes;
  }
  static std::string labels(const std::string& values, uint32_t magic = 0x801) {
    return big_endian(magic) + big_endian(static_cast<uint32_t>(values.size())) + values;
  }
  std::string write_gz(const std::string& name, const std::string& bytes) const {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return path(name);
  }
  std::string message() const {
    return message_of([&] { read_fashion_mnist(folder(), true); });
  }

  static constexpr const char* kImages = "train-images-idx3-ubyte";
  static constexpr const char* kLabels = "train-labels-idx1-ubyte";
};

TEST_F(FashionMnist, ReadsPlainAndCompressedFiles) {
  for (const bool compressed : {false, true}) {
    for (const bool train : {true, false}) {
      const std::string prefix = train ? "train" : "t10k";
      const auto put = [&](const std::string& name, const std::string& bytes) {
        compressed ? write_gz(name + ".gz", bytes) : write(name, bytes);
      };
      put(prefix + "-images-idx3-ubyte", images(3));
      put(prefix + "-labels-idx1-ubyte", labels(std::string("\x09\x00\x04", 3)));
      const LabelledImages read = read_fashion_mnist(folder(), train);
      EXPECT_EQ(read.count, 3);
      EXPECT_EQ(read.rows, 28);
      EXPECT_EQ(read.columns, 28);
      EXPECT_EQ(read.labels, (std::vector<uint8_t>{9, 0, 4}));
      ASSERT_EQ(read.pixels.size(), 3u * 28 * 28);
      for (size_t i = 0; i < read.pixels.size(); ++i) ASSERT_EQ(read.pixels[i], i % 251);
    }
    std::filesystem::remove(path("train-images-idx3-ubyte"));
    std::filesystem::remove(path("train-labels-idx1-ubyte"));
    std::filesystem::remove(path("t10k-images-idx3-ubyte"));
    std::filesystem::remove(path("t10k-labels-idx1-ubyte"));
  }
}

TEST_F(FashionMnist, MissingFilesAndWrongKinds) {
  EXPECT_EQ(message(), "data.path: " + folder() +
                           " holds no train-images-idx3-ubyte (plain or .gz); "
                           "scripts/prepare-corpus data --fashion-mnist brings it");
  const std::string images_path = write(kImages, labels("abc"));
  const std::string labels_path = write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "data.path: " + images_path + " is truncated: 11 bytes, its header has 16");
  write(kImages, images(1, 0x801));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " is no such idx file: magic 2049 instead of 2051");
  write(kImages, images(1, 0x803, 14));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " has images of 14 x 14 pixels instead of 28 x 28");
  write(kImages, images(1));
  write(kLabels, labels("\x01", 0x803));
  EXPECT_EQ(message(),
            "data.path: " + labels_path + " is no such idx file: magic 2051 instead of 2049");
  write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "");
}

TEST_F(FashionMnist, TruncatedAndOverlongFiles) {
  const std::string images_path = write(kImages, images(2).substr(0, 16 + 1567));
  const std::string labels_path = write(kLabels, labels("\x01\x02"));
  EXPECT_EQ(message(), "data.path: " + images_path + " has 1567 bytes of data but declares 1568");
  write(kImages, images(2) + "x");
  EXPECT_EQ(message(), "data.path: " + images_path + " has 1569 bytes of data but declares 1568");
  write(kImages, images(2));
  write(kLabels, labels("\x01\x02").substr(0, 9));
  EXPECT_EQ(message(), "data.path: " + labels_path + " has 1 bytes of data but declares 2");
  write(kLabels, "");
  EXPECT_EQ(message(), "data.path: " + labels_path + " is truncated: 0 bytes, its header has 8");
}

TEST_F(FashionMnist, ACompressedFileCutShortIsFound) {
  const std::string images_path = write_gz(std::string(kImages) + ".gz", images(2));
  write(kLabels, labels("\x01\x02"));
  const auto size = std::filesystem::file_size(images_path);
  for (const auto cut : {size / 2, size - 1}) {
    std::filesystem::resize_file(images_path, cut);
    EXPECT_EQ(message(),
              "data.path: " + images_path +
                  " is damaged or cut short; scripts/prepare-corpus data --fashion-mnist "
                  "brings it anew when its folder is removed");
    write_gz(std::string(kImages) + ".gz", images(2));
  }
  EXPECT_EQ(message(), "");
}

TEST_F(FashionMnist, ImpossibleDimensionsAreRefusedBeforeAnythingIsAllocated) {
  const std::string images_path =
      write(kImages, big_endian(0x803) + big_endian(UINT32_MAX) + big_endian(UINT32_MAX) +
                         big_endian(UINT32_MAX));
  write(kLabels, labels("\x01"));
  EXPECT_EQ(message(), "data.path: " + images_path + " declares impossible dimensions");
}

TEST_F(FashionMnist, LabelsMustFitTheImages) {
  const std::string images_path = write(kImages, images(2));
  const std::string labels_path = write(kLabels, labels("\x01\x0a"));
  EXPECT_EQ(message(), "data.path: " + labels_path + " holds label 10; labels are 0 to 9");
  write(kLabels, labels("\x01\x02\x03"));
  EXPECT_EQ(message(),
            "data.path: " + images_path + " has 2 images but " + labels_path + " has 3 labels");
  write(kImages, images(0));
  write(kLabels, labels(""));
  EXPECT_EQ(message(), "data.path: " + labels_path + " holds no label");
}

}  // namespace
}  // namespace zerosharp

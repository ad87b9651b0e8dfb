// Fashion-MNIST (Xiao et al. 2017) in its idx files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace zerosharp {

/// Images as bytes (0 black to 255 white, row by row) and their labels.
struct LabelledImages {
  int64_t count = 0;
  int64_t rows = 0;             ///< pixels
  int64_t columns = 0;          ///< pixels
  std::vector<uint8_t> pixels;  ///< count · rows · columns
  std::vector<uint8_t> labels;  ///< count, each below 10
};

/// Reads {train|t10k}-images-idx3-ubyte and -labels-idx1-ubyte from `folder`, plain or with .gz.
/// Throws ConfigError naming the file: missing, damaged, wrong magic or size, truncated, images
/// that are not 28 x 28, counts that differ, labels out of range.
LabelledImages read_fashion_mnist(const std::string& folder, bool train);

}  // namespace zerosharp

// Multiplies two matrices through tensorflow::ClientSession, the way of TensorFlow's guide for C++.
#include <iostream>
#include <vector>

#include "tensorflow/cc/client/client_session.h"
#include "tensorflow/cc/ops/standard_ops.h"
#include "tensorflow/core/framework/tensor.h"

int main() {
  const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  auto turn = tensorflow::ops::Const(scope, {{0.f, 1.f}, {-1.f, 0.f}});
  auto point = tensorflow::ops::Placeholder(scope, tensorflow::DT_FLOAT);
  auto turned = tensorflow::ops::MatMul(scope.WithOpName("turned"), turn, point);
  tensorflow::ClientSession session(scope);
  std::vector<tensorflow::Tensor> results;
  const auto status = session.Run({{point, {{3.f}, {4.f}}}}, {turned}, &results);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  const auto result = results.at(0).matrix<float>();
  std::cout << "ClientSession: a quarter turn takes (3, 4) to (" << result(0, 0) << ", " << result(1, 0) << ")\n";
  return result(0, 0) == 4.f && result(1, 0) == -3.f ? 0 : 1;
}

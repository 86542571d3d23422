// Multiplies two matrices in a graph that is made and run through TensorFlow's C++ interface.
#include <iostream>
#include <memory>
#include <vector>

#include "tensorflow/cc/framework/scope.h"
#include "tensorflow/cc/ops/const_op.h"
#include "tensorflow/cc/ops/math_ops.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session.h"

namespace {

tensorflow::GraphDef quarter_turn(absl::Status* status) {
  const tensorflow::Scope scope = tensorflow::Scope::NewRootScope();
  auto turn = tensorflow::ops::Const(scope, {{0.f, 1.f}, {-1.f, 0.f}});
  auto point = tensorflow::ops::Const(scope, {{3.f}, {4.f}});
  tensorflow::ops::MatMul(scope.WithOpName("turned"), turn, point);
  tensorflow::GraphDef graph;
  *status = scope.ToGraphDef(&graph);
  return graph;
}

absl::Status run(tensorflow::Tensor* result) {
  absl::Status status;
  const tensorflow::GraphDef graph = quarter_turn(&status);
  if (!status.ok()) return status;
  std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(tensorflow::SessionOptions()));
  status = session->Create(graph);
  if (!status.ok()) return status;
  std::vector<tensorflow::Tensor> results;
  status = session->Run({}, {"turned:0"}, {}, &results);
  if (status.ok()) *result = results.at(0);
  return status;
}

}  // namespace

int main() {
  tensorflow::Tensor result;
  const absl::Status status = run(&result);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  const auto turned = result.matrix<float>();
  std::cout << "C++: a quarter turn takes (3, 4) to (" << turned(0, 0) << ", " << turned(1, 0) << ")\n";
  return turned(0, 0) == 4.f && turned(1, 0) == -3.f ? 0 : 1;
}

/* Multiplies two numbers in a graph that is made and run through TensorFlow's C interface. */
#include <stdio.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static int failed(const TF_Status* status, const char* step) {
  if (TF_GetCode(status) == TF_OK) return 0;
  fprintf(stderr, "%s: %s\n", step, TF_Message(status));
  return 1;
}

static TF_Operation* constant(TF_Graph* graph, const char* name, float value, TF_Status* status) {
  TF_Tensor* tensor = TF_AllocateTensor(TF_FLOAT, NULL, 0, sizeof value);
  memcpy(TF_TensorData(tensor), &value, sizeof value);
  TF_OperationDescription* description = TF_NewOperation(graph, "Const", name);
  TF_SetAttrType(description, "dtype", TF_FLOAT);
  TF_SetAttrTensor(description, "value", tensor, status);
  TF_Operation* operation = TF_FinishOperation(description, status);
  TF_DeleteTensor(tensor);
  return operation;
}

static TF_Operation* product(TF_Graph* graph, TF_Operation* left, TF_Operation* right, TF_Status* status) {
  TF_OperationDescription* description = TF_NewOperation(graph, "Mul", "product");
  TF_AddInput(description, (TF_Output){left, 0});
  TF_AddInput(description, (TF_Output){right, 0});
  return TF_FinishOperation(description, status);
}

int main(int count, char** arguments) {
  if (count != 2 || strcmp(TF_Version(), arguments[1]) != 0) {
    fprintf(stderr, "the library is %s, expected %s\n", TF_Version(), count == 2 ? arguments[1] : "a version");
    return 1;
  }
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_Operation* six = constant(graph, "six", 6.0f, status);
  if (failed(status, "six")) return 1;
  TF_Operation* seven = constant(graph, "seven", 7.0f, status);
  if (failed(status, "seven")) return 1;
  TF_Output wanted = {product(graph, six, seven, status), 0};
  if (failed(status, "product")) return 1;

  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session = TF_NewSession(graph, options, status);
  if (failed(status, "session")) return 1;
  TF_Tensor* result = NULL;
  TF_SessionRun(session, NULL, NULL, NULL, 0, &wanted, &result, 1, NULL, 0, NULL, status);
  if (failed(status, "run")) return 1;

  float answer = *(float*)TF_TensorData(result);
  TF_DeleteTensor(result);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  printf("C: TensorFlow %s says 6 x 7 = %g\n", TF_Version(), answer);
  return answer == 42.0f ? 0 : 1;
}

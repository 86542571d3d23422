"""Speaks with a server as a client of TensorFlow Serving does: the messages and stubs of this package over real gRPC.

The server is a stand-in of a few lines, for the API's package is tested where the model server is not installed: it
doubles what it is sent. What is tested is that messages are encoded, sent, answered and read.
"""

from __future__ import annotations

import sys
from concurrent import futures

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

NAME, VERSION = "doubling", 7
SECONDS = 300  # for an answer, on a machine that does much else


class Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers with twice the input."""

    def Predict(  # noqa: N802 - the name is the service's
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        """Double what ``x`` holds."""
        if request.model_spec.name != NAME:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model_spec.name}")
        answer = predict_pb2.PredictResponse(model_spec=request.model_spec)
        answer.outputs["y"].CopyFrom(tf.make_tensor_proto(2 * tf.make_ndarray(request.inputs["x"])))
        return answer


class Models(model_service_pb2_grpc.ModelServiceServicer):
    """Says that the model is there."""

    def GetModelStatus(  # noqa: N802 - the name is the service's
        self, request: get_model_status_pb2.GetModelStatusRequest, context: grpc.ServicerContext
    ) -> get_model_status_pb2.GetModelStatusResponse:
        """Tell the one version as available."""
        if request.model_spec.name != NAME:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model_spec.name}")
        status = get_model_status_pb2.ModelVersionStatus
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=[status(version=VERSION, state=status.AVAILABLE)]
        )


def main() -> None:
    """Start the stand-in on a free port of this machine and ask it as a client does."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Predictions(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Models(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        with grpc.insecure_channel(f"localhost:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            grpc.channel_ready_future(channel).result(timeout=SECONDS)
            ask(channel)
    finally:
        server.stop(None)
    sys.stdout.write(f"the API of TensorFlow Serving works with a server and TensorFlow {tf.__version__}\n")


def ask(channel: grpc.Channel) -> None:
    """Ask for a model's status, for a prediction, and for a model that is not there."""
    status_request = get_model_status_pb2.GetModelStatusRequest()
    status_request.model_spec.name = NAME
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status_request, timeout=SECONDS)
    assert status.model_version_status[0].version == VERSION, status

    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = NAME
    request.model_spec.version.value = VERSION
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([[1.0, 2.5], [-3.0, 0.0]]))
    answer = predictions.Predict(request, timeout=SECONDS)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [[2.0, 5.0], [-6.0, 0.0]], answer
    assert answer.model_spec.version.value == VERSION, answer

    request.model_spec.name = "another"
    refused = predictions.Predict.future(request, timeout=SECONDS).exception()
    assert refused is not None, "a model that is not there was answered for"
    assert refused.code() == grpc.StatusCode.NOT_FOUND, refused


if __name__ == "__main__":
    main()

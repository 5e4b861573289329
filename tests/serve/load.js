// k6 asks over HTTP and gRPC, and checks each answer. Set: HTTP, GRPC, MODEL, TEXTS, LABELS (JSON).
import { check } from "k6";
import { b64encode, b64decode } from "k6/encoding";
import grpc from "k6/net/grpc";
import http from "k6/http";

const texts = JSON.parse(__ENV.TEXTS);
const labels = JSON.parse(__ENV.LABELS);
const tensor = { name: "TEXT", datatype: "BYTES", shape: [texts.length, 1] };
const client = new grpc.Client();
client.loadProtoset(__ENV.PROTOSET);

export const options = {
  vus: 4,
  iterations: 40,
  thresholds: { checks: ["rate==1"], http_req_failed: ["rate==0"] },
};

export default function () {
  const response = http.post(
    `http://${__ENV.HTTP}/v2/models/${__ENV.MODEL}/infer`,
    JSON.stringify({ inputs: [{ ...tensor, data: texts }], outputs: [{ name: "LABEL" }] }),
    { headers: { "Content-Type": "application/json" } },
  );
  check(response, {
    "http labels": (got) => got.status === 200 && same(got.json("outputs.0.data")),
  });
  client.connect(__ENV.GRPC, { plaintext: true });
  const answer = client.invoke("inference.GRPCInferenceService/ModelInfer", {
    model_name: __ENV.MODEL,
    inputs: [{ ...tensor, contents: { bytes_contents: texts.map((text) => b64encode(text)) } }],
    outputs: [{ name: "LABEL" }],
  });
  check(answer, {
    "grpc labels": (got) =>
      got.status === grpc.StatusOK && same(unpacked(got.message.rawOutputContents[0])),
  });
  client.close();
}

function same(found) {
  return JSON.stringify(found) === JSON.stringify(labels);
}

// each text follows its length in four bytes, little-endian
function unpacked(content) {
  const bytes = new DataView(b64decode(content));
  const found = [];
  for (let place = 0; place < bytes.byteLength; ) {
    const length = bytes.getUint32(place, true);
    const own = new Uint8Array(bytes.buffer, place + 4, length);
    found.push(String.fromCharCode(...own));
    place += 4 + length;
  }
  return found;
}

// Reads a bundle of joslim in the browser, and runs its children with onnxruntime-web (`ort`).
// joslim_runtime/bundle.py describes the format.

const FORMATS = [1, 2, 3];

async function openBundle(buffer) {
  const entries = await unzip(buffer);
  const manifest = JSON.parse(new TextDecoder().decode(await entries.get("manifest.json")()));
  if (!FORMATS.includes(manifest.format))
    throw new Error(`The bundle has format ${manifest.format}, this page reads ${FORMATS.at(-1)}.`);
  const [low, high] = [await entries.get("weights.low")(), await entries.get("weights.high")()];
  const octets = manifest.integers ? await entries.get("weights.int8")() : new Uint8Array();
  const integers = new Int8Array(octets.buffer, octets.byteOffset, octets.length);
  return { manifest, entries, integers, values: joinBytes(low, high, manifest.values) };
}

// The entries of a zip file: name -> function that reads it. They are stored or deflated.
async function unzip(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("The bundle is damaged: it is no zip file.");
  const entries = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    const method = view.getUint16(at + 10, true);
    const size = view.getUint32(at + 20, true);
    const lengths = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(new Uint8Array(buffer, at + 46, lengths[0]));
    entries.set(name, async () => {
      const start =
        local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      const bytes = new Uint8Array(buffer, start, size);
      if (method === 0) return bytes;
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    });
    at += 46 + lengths[0] + lengths[1] + lengths[2];
  }
  return entries;
}

// The four bytes of each value lie in four rows.
function joinBytes(low, high, count) {
  const bytes = new Uint8Array(4 * count);
  for (let at = 0; at < count; at++) {
    bytes[4 * at] = low[at];
    bytes[4 * at + 1] = low[count + at];
    bytes[4 * at + 2] = low[2 * count + at];
    bytes[4 * at + 3] = high[at];
  }
  return new Float32Array(bytes.buffer);
}

// A weight of a child: kept ranges of each axis of a tensor, times a factor for each first index.
function weightOf(bundle, { of, keep, times }) {
  const { offset, shape, scale } = bundle.manifest.tensors[of];
  const source = scale === undefined ? bundle.values : bundle.integers;
  const kept = shape.map((full, axis) => keptIndices(keep ? keep[axis] : full));
  const sizes = kept.map((indices) => indices.length);
  const strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((a, b) => a * b, 1));
  const values = new Float32Array(sizes.reduce((a, b) => a * b, 1));
  // Behind the last axis that is cut, whole blocks are copied.
  const cut = sizes.findLastIndex((size, axis) => size !== shape[axis]);
  const block = cut < 0 ? values.length : strides[cut];
  let place = 0;
  const copy = (axis, start) => {
    if (axis > cut) {
      values.set(source.subarray(start, start + block), place);
      place += block;
    } else for (const index of kept[axis]) copy(axis + 1, start + index * strides[axis]);
  };
  copy(0, offset);
  const each = values.length / sizes[0];
  const multiply = (tensor, places) => {
    const from = bundle.manifest.tensors[tensor].offset;
    for (let at = 0; at < values.length; at++)
      values[at] *= bundle.values[from + places[Math.floor(at / each)]];
  };
  if (scale !== undefined) multiply(scale, kept[0]); // one for each index of the whole tensor
  if (times !== undefined) multiply(times, kept[0].map((_, place) => place));
  return { sizes, values };
}

function keptIndices(axis) {
  const ranges = typeof axis === "number" ? [[0, axis]] : axis;
  return ranges.flatMap(([start, stop]) =>
    Array.from({ length: stop - start }, (_, at) => start + at),
  );
}

// A child as an ONNX model: its graph, and a second model with nothing but the weights behind it.
// Two protocol buffers in a row are one with the fields of both.
async function modelOf(bundle, child) {
  const graph = await bundle.entries.get(child.graph)();
  const parts = child.weights.flatMap((weight) => {
    const { sizes, values } = weightOf(bundle, weight);
    const name = new TextEncoder().encode(weight.name);
    const head = [
      ...sizes.flatMap((size) => [0x08, ...varint(size)]),
      ...[0x10, 1, 0x42, ...varint(name.length), ...name],
      ...[0x4a, ...varint(values.byteLength)],
    ];
    const before = [0x2a, ...varint(head.length + values.byteLength), ...head];
    return [new Uint8Array(before), new Uint8Array(values.buffer)];
  });
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const all = [graph, new Uint8Array([0x3a, ...varint(length)]), ...parts];
  return new Uint8Array(await new Blob(all).arrayBuffer());
}

function varint(number) {
  const bytes = [];
  while (number > 127) {
    bytes.push((number % 128) + 128);
    number = Math.floor(number / 128);
  }
  return [...bytes, number];
}

// Pixels as the network takes them. image: {width, height, data} with red, green, blue, alpha.
function prepared(image, manifest) {
  const [channels, height, width] = manifest.shape;
  const side = manifest.crop * Math.min(image.width, image.height);
  const ends = (full) => (height === width ? [(full - side) / 2, (full + side) / 2] : [0, full]);
  const down = resizing(image.height, height, ...ends(image.height));
  const across = resizing(image.width, width, ...ends(image.width));
  const result = new Float32Array(channels * height * width);
  for (let channel = 0; channel < channels; channel++) {
    const read = (y, x) => {
      const at = 4 * (y * image.width + x);
      const [red, green, blue] = [0, 1, 2].map((colour) => image.data[at + colour] / 255);
      return channels === 1 ? 0.299 * red + 0.587 * green + 0.114 * blue : [red, green, blue][channel];
    };
    const rows = Array.from({ length: image.height }, (_, y) =>
      across.map(({ start, weights }) =>
        weights.reduce((sum, weight, at) => sum + weight * read(y, start + at), 0),
      ),
    );
    down.forEach(({ start, weights }, y) => {
      for (let x = 0; x < width; x++) {
        const pixel = weights.reduce((sum, weight, at) => sum + weight * rows[start + at][x], 0);
        result[(channel * height + y) * width + x] =
          (pixel - manifest.mean[channel]) / manifest.std[channel];
      }
    });
  }
  return result;
}

// Pixels of one image in the size of a child, resized as the network does in Python.
function resized(pixels, [channels, height, width], shape) {
  if (shape[1] === height && shape[2] === width) return pixels;
  const [down, across] = [resizing(height, shape[1], 0, height), resizing(width, shape[2], 0, width)];
  const mean = ({ start, weights }, read) =>
    weights.reduce((sum, weight, at) => sum + weight * read(start + at), 0);
  const result = Array.from({ length: channels }, (_, channel) =>
    down.map((rows) =>
      across.map((columns) =>
        mean(rows, (y) => mean(columns, (x) => pixels[(channel * height + y) * width + x])),
      ),
    ),
  );
  return new Float32Array(result.flat(2));
}

// The weights of the old pixels in each new one: triangles, which a reduction widens.
function resizing(full, size, from, to) {
  const scale = (to - from) / size;
  const reach = Math.max(scale, 1);
  return Array.from({ length: size }, (_, place) => {
    const centre = from + (place + 0.5) * scale;
    const start = Math.max(0, Math.floor(centre - reach));
    const stop = Math.min(full, Math.ceil(centre + reach));
    const weights = Array.from({ length: stop - start }, (_, at) =>
      Math.max(0, 1 - Math.abs(start + at + 0.5 - centre) / reach),
    );
    const sum = weights.reduce((a, b) => a + b, 0);
    return { start, weights: weights.map((weight) => weight / sum) };
  });
}

// The network: it keeps the last few children open.
class Network {
  constructor(bundle, keep = 4) {
    Object.assign(this, { bundle, keep, manifest: bundle.manifest, sessions: new Map() });
  }

  async session(child) {
    const known = this.sessions.get(child.name);
    const session = known ?? (await ort.InferenceSession.create(await modelOf(this.bundle, child)));
    this.sessions.delete(child.name);
    this.sessions.set(child.name, session);
    if (this.sessions.size > this.keep) {
      const [oldest] = this.sessions.keys();
      await this.sessions.get(oldest).release();
      this.sessions.delete(oldest);
    }
    return session;
  }

  // Channels, height and width of the images that a child takes.
  shape(child) {
    return child.shape ?? this.manifest.shape;
  }

  // Scores of images of the child's shape, all in one Float32Array.
  async scores(child, images) {
    const { input, output } = this.manifest;
    const shape = this.shape(child);
    const count = images.length / shape.reduce((a, b) => a * b, 1);
    const session = await this.session(child);
    const results = await session.run({
      [input]: new ort.Tensor("float32", images, [count, ...shape]),
    });
    return results[output].data;
  }
}

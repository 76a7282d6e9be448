// Waves that sweep like on a bedside monitor, and the trend of window averages against the limit.

const SPAN_S = 8;     // seconds across the screen
const GAP_S = 0.35;   // blank space ahead of the pen
export const RATE = 125;
const PAP = { scale: 0.01, low: -5, high: 75 };
const ECG = { scale: 0.001, low: -0.6, high: 1.4 };
const MISSING = -32768;

export function decode(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Int16Array(bytes.buffer, 0, bytes.length >> 1);
}

function fit(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const wide = Math.round(canvas.clientWidth * ratio), high = Math.round(canvas.clientHeight * ratio);
  if (canvas.width === wide && canvas.height === high) return false;
  canvas.width = wide;
  canvas.height = high;
  return true;
}

// One channel: samples by time, drawn up to the pen.
class Channel {
  constructor(shape, top, height, colour) {
    Object.assign(this, { shape, top, height, colour });
    this.samples = new Map();  // second -> Int16Array
    this.last = null;
  }

  add(second, samples) {
    this.samples.set(second, samples);
    for (const old of this.samples.keys()) if (old < second - 30) this.samples.delete(old);
  }

  at(tick) {
    const value = this.samples.get(Math.floor(tick / RATE))?.[tick % RATE];
    return value === undefined || value === MISSING ? null : value * this.shape.scale;
  }

  y(value, high) {
    const { low, high: top } = this.shape;
    const share = Math.min(1.02, Math.max(-0.02, (value - low) / (top - low)));
    return (this.top + this.height * (1 - share)) * high;
  }
}

export class Trace {
  constructor(canvas, colours) {
    this.canvas = canvas;
    this.colours = colours;
    this.ecg = new Channel(ECG, 0.02, 0.4, "ecg");
    this.pap = new Channel(PAP, 0.46, 0.52, "pap");
    this.pen = null;
  }

  draw(until) {
    const context = this.canvas.getContext("2d");
    if (fit(this.canvas) || this.pen === null || until < this.pen || until - this.pen > SPAN_S) {
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      this.pen = Math.max(0, Math.max(until - SPAN_S + GAP_S, (this.pen ?? 0) > until ? 0 : until - SPAN_S + GAP_S));
    }
    if (until <= this.pen) return;
    const { width, height } = this.canvas;
    const x = (time) => ((time % SPAN_S) / SPAN_S) * width;
    this.wipe(context, this.pen, until + GAP_S, x);
    for (const channel of [this.ecg, this.pap]) this.line(context, channel, this.pen, until, x, width, height);
    this.pen = until;
  }

  wipe(context, from, to, x) {
    const { width, height } = this.canvas;
    const a = x(from), b = x(to);
    if (b >= a) context.clearRect(a, 0, b - a, height);
    else { context.clearRect(a, 0, width - a, height); context.clearRect(0, 0, b, height); }
  }

  line(context, channel, from, to, x, width, height) {
    context.strokeStyle = this.colours[channel.colour];
    context.lineWidth = Math.max(1.4, height / 70);
    context.lineJoin = "round";
    context.beginPath();
    let down = false, before = 0;
    for (let tick = Math.max(0, Math.floor(from * RATE) - 1); tick <= to * RATE; tick++) {
      const value = channel.at(tick);
      const place = x(tick / RATE);
      if (value === null) { down = false; continue; }
      if (!down || place < before) context.moveTo(place, channel.y(value, height));
      else context.lineTo(place, channel.y(value, height));
      down = true;
      before = place;
    }
    context.stroke();
  }

  again() { this.pen = null; }
}

// Averages of the last minutes, and the limit they are compared with.
export function drawTrend(canvas, points, limit, now, colours) {
  fit(canvas);
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  const span = 300, top = Math.max(60, limit + 15);
  const x = (time) => width - ((now - time) / span) * width;
  const y = (value) => height - 2 - (Math.min(value, top) / top) * (height - 4);
  context.strokeStyle = colours.limit;
  context.setLineDash([4, 4]);
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, y(limit));
  context.lineTo(width, y(limit));
  context.stroke();
  context.setLineDash([]);
  context.strokeStyle = colours.pap;
  context.lineWidth = Math.max(1.5, height / 26);
  context.beginPath();
  let down = false;
  for (const [time, value] of points) {
    if (value === null) { down = false; continue; }
    if (down) context.lineTo(x(time), y(value)); else context.moveTo(x(time), y(value));
    down = true;
  }
  context.stroke();
  context.fillStyle = colours.soft;
  for (const [time, value] of points) if (value !== null && value >= limit) context.fillRect(x(time) - 2, y(value), 5 * width / span + 1, y(limit) - y(value));
}

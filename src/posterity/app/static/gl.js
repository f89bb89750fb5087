// Points by WebGL2: one draw call for all of them.

const VERTEX = `#version 300 es
in vec2 place;
in vec4 colour;
uniform vec4 view; // scale and shift to clip space
uniform float size;
out vec4 tint;
void main() {
  gl_Position = vec4(place * view.xy + view.zw, 0.0, 1.0);
  gl_PointSize = size;
  tint = colour;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
in vec4 tint;
uniform float size;
out vec4 pixel;
void main() {
  float r = length(gl_PointCoord - 0.5) * size;
  float cover = clamp(0.5 * size - r + 0.5, 0.0, 1.0) * tint.a;
  pixel = vec4(tint.rgb * cover, cover);
}`;

export class GlPainter {
  // Throws where there is no WebGL2, or only a slow one that imitates a graphics card (unless forced).
  constructor(canvas, forced) {
    const gl = canvas.getContext("webgl2", {
      antialias: false,
      premultipliedAlpha: true,
      failIfMajorPerformanceCaveat: !forced,
      preserveDrawingBuffer: true,
    });
    if (!gl) throw new Error("no WebGL2");
    this.gl = gl;
    this.canvas = canvas;
    this.program = link(gl);
    gl.useProgram(this.program);
    this.view = gl.getUniformLocation(this.program, "view");
    this.size = gl.getUniformLocation(this.program, "size");
    this.placeBuffer = attribute(gl, this.program, "place", 2, gl.FLOAT, false);
    this.colourBuffer = attribute(gl, this.program, "colour", 4, gl.UNSIGNED_BYTE, true);
    this.orderBuffer = gl.createBuffer();
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.orderBuffer);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  places(xy) {
    const clean = xy.some(Number.isNaN) ? xy.map((v) => (v === v ? v : -9)) : xy;
    this.#upload(this.gl.ARRAY_BUFFER, this.placeBuffer, clean);
  }

  colours(rgba) {
    this.#upload(this.gl.ARRAY_BUFFER, this.colourBuffer, rgba);
  }

  order(rows) {
    this.count = rows.length;
    this.#upload(this.gl.ELEMENT_ARRAY_BUFFER, this.orderBuffer, rows);
  }

  draw({ x0, x1, y0, y1 }, size) {
    const gl = this.gl;
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const sx = 2 / (x1 - x0),
      sy = 2 / (y1 - y0);
    gl.uniform4f(this.view, sx, sy, -1 - x0 * sx, -1 - y0 * sy);
    gl.uniform1f(this.size, size);
    if (this.count) gl.drawElements(gl.POINTS, this.count, gl.UNSIGNED_INT, 0);
  }

  #upload(target, buffer, data) {
    this.gl.bindBuffer(target, buffer);
    this.gl.bufferData(target, data, this.gl.STATIC_DRAW);
  }
}

function link(gl) {
  const program = gl.createProgram();
  for (const [kind, source] of [
    [gl.VERTEX_SHADER, VERTEX],
    [gl.FRAGMENT_SHADER, FRAGMENT],
  ]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
  return program;
}

function attribute(gl, program, name, width, kind, normalised) {
  const buffer = gl.createBuffer(),
    place = gl.getAttribLocation(program, name);
  gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
  gl.enableVertexAttribArray(place);
  gl.vertexAttribPointer(place, width, kind, normalised, 0, 0);
  return buffer;
}

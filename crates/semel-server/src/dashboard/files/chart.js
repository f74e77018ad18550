// Bar charts over time, as SVG.

import { s } from "./dom.js";
import { rate } from "./format.js";

const WIDTH = 240;
const HEIGHT = 48;

/** Draws a chart. `points`: `{ at, value }`, oldest first; `slots` of them fill the width. */
export function bars(points, slots, name, tone) {
  const top = Math.max(...points.map(({ value }) => value), Number.MIN_VALUE);
  const step = WIDTH / slots;
  const first = slots - points.length;
  const bar = ({ at, value }, index) => {
    const height = value > 0 ? Math.max(1.5, (value / top) * (HEIGHT - 4)) : 0;
    const x = ((first + index) * step).toFixed(2);
    return s("rect", { x, y: (HEIGHT - height).toFixed(2), width: Math.max(1, step - 1).toFixed(2), height: height.toFixed(2) },
      s("title", {}, `${rate(value)} a second at ${new Date(at).toLocaleTimeString()}`));
  };
  const last = points.at(-1)?.value;
  return s("svg", {
    class: `chart ${tone}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": last === undefined ? `${name}: no figures yet` : `${name}: ${rate(last)} a second now, at most ${rate(top < 1e-9 ? 0 : top)}`,
  }, s("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }), points.map(bar));
}

// A curve as wide as a word (Tufte 2006): no axes, only its shape.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 72,
  HEIGHT = 20,
  EDGE = 2;

/** The picture of some values in their order; null of fewer than two. `label`: what they are, for who cannot see it. */
export function sparkLine(values, label) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return null;
  const low = Math.min(...known),
    span = Math.max(...known) - low || 1;
  const x = (i) => EDGE + (i * (WIDTH - 2 * EDGE)) / (known.length - 1);
  const y = (value) => HEIGHT - EDGE - ((value - low) / span) * (HEIGHT - 2 * EDGE);
  const picture = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", known.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  for (const [name, value] of [["class", "spark"], ["viewBox", `0 0 ${WIDTH} ${HEIGHT}`], ["width", WIDTH],
    ["height", HEIGHT], ["role", "img"], ["aria-label", label]]) picture.setAttribute(name, value); // prettier-ignore
  picture.append(line);
  return picture;
}

// A chart as a picture that can be shown elsewhere: with its title and what its lines are.

import { colour } from "./chart.js";

const PAD = 16;
const LINE = 20;
const FONT = "system-ui, sans-serif";
const MOST = 40; // lines that are named

/** A PNG of a chart. `lines`: [{ label, colour, dash }]. */
export function picture(chart, title, lines) {
  const scale = devicePixelRatio,
    drawn = chart.canvas,
    named = lines.slice(0, MOST);
  const canvas = document.createElement("canvas");
  canvas.width = drawn.width + 2 * PAD * scale;
  canvas.height = drawn.height + (3 * PAD + (named.length + 1) * LINE) * scale;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = colour("panel");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.scale(scale, scale);
  ctx.fillStyle = colour("text");
  ctx.font = `600 15px ${FONT}`;
  ctx.fillText(title, PAD, PAD + 12);
  ctx.drawImage(drawn, PAD, PAD + LINE, drawn.width / scale, drawn.height / scale);
  ctx.font = `13px ${FONT}`;
  let top = 2 * PAD + LINE + drawn.height / scale;
  for (const line of named) {
    ctx.strokeStyle = line.colour;
    ctx.lineWidth = 2;
    ctx.setLineDash(line.dash);
    ctx.beginPath();
    ctx.moveTo(PAD, top + 6);
    ctx.lineTo(PAD + 28, top + 6);
    ctx.stroke();
    ctx.fillStyle = colour("text");
    ctx.fillText(line.label, PAD + 36, top + 11);
    top += LINE;
  }
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

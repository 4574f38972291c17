// The points of a scatter of several GPUs, told apart by labels beside them: those of one moment that lie together are
// one point, and a label is put where there is room for it.

import {known} from "./units.js";

/** In both directions, of the whole axis: GPUs of a tensor-parallel group do the same. */
const TOGETHER = 0.015;
const LETTER = 7;
const LINE = 14;
/** From a point to its label. */
const GAP = 6;
/** Half a point. */
const MARK = 4;
/** One name is not told again so near, in pixels. */
const AGAIN = 70;
/** Where a label of so many pixels begins, from its point: to the right, and down. */
const SIDES = {
  "middle right": () => [GAP, -LINE / 2],
  "middle left": (wide) => [-wide - GAP, -LINE / 2],
  "top center": (wide) => [-wide / 2, -LINE - GAP / 2],
  "bottom center": (wide) => [-wide / 2, GAP / 2],
};

/** gpus: of the API's scatter. The result: {at, x, y, worst, gpus, name}, the newest first. */
export function together(gpus) {
  const moments = new Map();
  for (const gpu of gpus) {
    gpu.at.forEach((at, n) => {
      const [x, y, late] = [gpu.sm_active[n], gpu.dram_active[n], gpu.inter_token_p95_seconds[n]];
      if (!moments.has(at)) moments.set(at, []);
      const isNear = (each) => Math.abs(each.x - x) <= TOGETHER && Math.abs(each.y - y) <= TOGETHER;
      const there = moments.get(at).find(isNear);
      if (!there) moments.get(at).push({at, x, y, worst: known(late) ? late : null, gpus: [gpu.gpu]});
      else {
        there.gpus.push(gpu.gpu);
        if (known(late)) there.worst = Math.max(late, there.worst ?? late);
      }
    });
  }
  return [...moments.keys()]
    .sort((one, other) => other - one)
    .flatMap((at) => moments.get(at))
    .map((each) => ({...each, name: runs(each.gpus)}));
}

/** 0-3, 5, 7: indices that follow each other as one; others, such as those of MIG, as they are. */
export function runs(names) {
  const found = [];
  for (const name of names) {
    const last = found.at(-1);
    if (last && /^\d+$/.test(name) && Number(last.at(-1)) + 1 === Number(name)) last.push(name);
    else found.push([name]);
  }
  return found.map((run) => (run.length > 2 ? `${run[0]}-${run.at(-1)}` : run.join(", "))).join(", ");
}

/**
 * For each point {text, side}, the text empty where it would be over another's. Over another point is only what would
 * be told nowhere else. width, height: of the axes, in pixels.
 */
export function labelled(points, width, height) {
  const marks = points.map(({x, y}) => {
    const [across, down] = [x * width, (1 - y) * height];
    return {left: across - MARK, right: across + MARK, top: down - MARK, bottom: down + MARK};
  });
  const taken = [];
  return points.map(({x, y, name}, n) => {
    const [across, down] = [x * width, (1 - y) * height];
    const isTold = (each) => each.name === name && Math.hypot(each.across - across, each.down - down) < AGAIN;
    if (taken.some(isTold)) return NONE;
    const rooms = Object.keys(SIDES)
      .map((side) => ({name, across, down, side, ...room(name, across, down, SIDES[side])}))
      .filter((box) => box.left >= 0 && box.right <= width && !taken.some((each) => isOver(box, each)));
    const isFree = (box) => !marks.some((mark, other) => other !== n && isOver(box, mark));
    const box = rooms.find(isFree) ?? (taken.some((each) => each.name === name) ? null : rooms[0]);
    if (!box) return NONE;
    taken.push(box);
    return {text: name, side: box.side};
  });
}

const NONE = {text: "", side: "middle right"};

const isOver = (one, other) =>
  one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;

function room(name, across, down, side) {
  const wide = name.length * LETTER;
  const [right, below] = side(wide);
  return {left: across + right, right: across + right + wide, top: down + below, bottom: down + below + LINE};
}

// What was different while tokens were slow: signals before and after, dimensions, tenants, a surface of latency,
// correlation.

import {diverging, logShare, sequential} from "./colours.js";
import {choice, deeper, firstOf, h, table} from "./dom.js";
import {amount, change, clock, count, counted, known, seconds, words} from "./units.js";

/** Correlations from here on are told at once. */
const WEAK = 0.3;
/** Rows of a table that are told at once. */
const ROWS = 8;
/** Less is told as less. */
const CHANCE = 0.001;
const RATES = /faults|swap|pcie|nvlink/;
const R = "1: both rise and fall together. 0: neither follows the other. -1: one falls as the other rises.";
const VERDICT =
  "bad: slow requests are past what is healthy, and clearly worse than the others. suspect: it goes with slowness. " +
  "ok: neither. unknown: too little to say.";
const judged = (row) => h("span", {class: row.verdict}, row.verdict);
const decimals = (value) => (known(value) ? value.toFixed(2) : "-");

/** Of dimensions whose unit is of a time, rates are told as such. */
const measured = (value, unit, name) =>
  amount(value, RATES.test(name) && unit && !unit.endsWith("/s") ? `${unit}/s` : unit);

export function beforeDuring(found) {
  if (!found?.changes.length) return null;
  const before = found.before
    ? `against ${clock(found.before.start)} to ${clock(found.before.end)}, when it was quiet`
    : "(it was never quiet before)";
  const caption = `${clock(found.during.start)} to ${clock(found.during.end)} ${before}; ${seconds(found.excess_seconds)} lost, signals of ${found.server} ${found.model}`;
  const columns = [
    {title: "Signal", left: true, value: (row) => row.title},
    {title: "During", value: (row) => measured(row.during, row.unit, row.signal)},
  ];
  if (found.before) {
    columns.splice(1, 0, {title: "Before", value: (row) => measured(row.before, row.unit, row.signal)});
    columns.push({title: "Change", value: (row) => change(row.change)});
  }
  return deeper(
    "Before and after the worst stretch",
    "",
    ...firstOf(ROWS, found.changes, (those) => table(caption, columns, those), "more"),
  );
}

export function different(matrix) {
  if (!matrix.length) return null;
  const columns = [
    {title: "Signal", left: true, value: (row) => row.title},
    {
      title: "Healthy",
      left: true,
      help: "What it should be, where that does not depend.",
      value: (row) => row.healthy || "-",
    },
    {title: "Slow", help: "Mean over slow requests.", value: (row) => measured(row.slow_mean, row.unit, row.dimension)},
    {
      title: "Others",
      help: "Mean over the other requests.",
      value: (row) => measured(row.other_mean, row.unit, row.dimension),
    },
    {
      title: "Difference",
      help: "Of the two means, in standard deviations: 0 is none, 1 is as much as requests differ anyway.",
      value: (row) => decimals(row.effect),
    },
    {
      title: "r",
      help: `Correlation with the time per token, over requests. ${R}`,
      value: (row) => decimals(row.r),
    },
    {title: "Requests", help: "Of which it is known.", value: (row) => count(row.n)},
    {title: "Verdict", left: true, help: VERDICT, value: judged},
  ];
  const rows = (those) => table("Means over the slow requests and over the others", columns, those);
  const differ = matrix.filter((row) => row.verdict === "bad" || row.verdict === "suspect");
  const others = matrix.filter((row) => !differ.includes(row));
  return deeper(
    "What was different",
    "",
    ...(differ.length ? firstOf(ROWS, differ, rows, "more that were") : [h("p", {}, "Nothing that was watched.")]),
    others.length ? h("details", {}, h("summary", {}, `${others.length} that were not`), rows(others)) : "",
  );
}

/** Whether the tenants of one engine slow one another down. */
export function tenants(engines) {
  if (!engines.length) return null;
  const columns = [
    {title: "Tenant", left: true, value: (row) => row.tenant || "none named"},
    {title: "Requests", value: (row) => count(row.requests)},
    {title: "Each gets", help: "Tokens per second of one of its requests, its waiting included.", value: gets},
    {
      title: "By one tenant more",
      help: "By so much that changes when one more tenant is active.",
      value: (row) => (known(row.slope) ? `${row.slope > 0 ? "+" : ""}${amount(row.slope, "tokens/s")}` : "-"),
    },
    {
      title: "r",
      help: `Correlation of its rate with how many tenants are active. ${R}`,
      value: (row) => decimals(row.r),
    },
    {title: "Verdict", left: true, help: VERDICT, value: judged},
  ];
  const caption = (each) =>
    `${each.model} (${each.server}): ${count(each.active_mean)} tenants at a time, ${count(each.active_most)} at most`;
  const isJudged = (each) => each.tenants.some((row) => row.verdict !== "unknown");
  const [told, others] = [engines.filter(isJudged), engines.filter((each) => !isJudged(each))];
  const tables = (those) =>
    those.flatMap((each) => firstOf(ROWS, each.tenants, (rows) => table(caption(each), columns, rows)));
  return deeper(
    "Tenants",
    "Whether they slow one another down: what each gets, against how many are active.",
    ...tables(told),
    others.length
      ? h("details", {}, h("summary", {}, `${counted(others.length, "server")} too little is known of`), tables(others))
      : "",
  );
}

const gets = (row) => amount(row.tokens_per_second, "tokens/s");

function cells(caption, corner, columns, rows) {
  return h(
    "div",
    {class: "scroll matrix", tabindex: "0", role: "region", "aria-label": caption},
    h(
      "table",
      {class: "cells"},
      h("caption", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {scope: "col", class: "left"}, corner),
          columns.map((column) => h("th", {scope: "col"}, column)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([name, values]) =>
          h(
            "tr",
            {},
            h("th", {scope: "row", class: "left"}, name),
            values.map((cell) => h("td", {style: cell.style ?? {}, title: cell.title}, cell.text)),
          ),
        ),
      ),
    ),
  );
}

/** A bin of one value: 1, not 1 to 1. */
const bin = (label) => label.replace(/^(\S+) to \1$/, "$1");

export function surface(found) {
  if (!found) return null;
  const values = found.values.flat().filter(known);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const [across, down] = [words(found.x.name), words(found.y.name)];
  const measure = `P${count(100 * found.quantile)} of ${words(found.measure)}`;
  const text = `How the ${measure} of requests depends on two of their attributes at once: dark is fast, bright is slow.`;
  return deeper(
    "Response surface",
    text,
    cells(
      `${measure} by ${across} (across) and ${down} (down); cells of fewer than 5 requests are empty`,
      `${down} \\ ${across}`,
      found.x.labels.map(bin),
      found.y.labels.map((label, y) => [
        bin(label),
        found.values[y].map((value, x) =>
          known(value)
            ? {
                text: seconds(value),
                style: sequential(logShare(value, least, most)),
                title: `of ${count(found.counts[y][x])} requests`,
              }
            : {text: "", title: `${count(found.counts[y][x])} requests: too few`},
        ),
      ]),
    ),
  );
}

const CORRELATION = `Which signals go with which latencies, over the last ten minutes; what goes together need not be the cause. ${R}`;

export function correlation(matrices, engine) {
  if (!matrices.length) return deeper("Correlation", CORRELATION, h("p", {}, "Not enough is known yet."));
  const body = h("div", {});
  const strong = (each) => each.pairs.filter((pair) => pair.strong).length;
  const name = (each) => `${each.model} (${each.server})${each.gpus.length ? "" : ", not bound to GPUs"}`;
  const most = matrices.toSorted((one, other) => strong(other) - strong(one))[0];
  const shown = matrices.find((each) => name(each) === engine.chosen) ?? most;
  const draw = (n) => body.replaceChildren(correlated(matrices[n]));
  draw(matrices.indexOf(shown));
  const options = matrices.map((each, n) => [String(n), name(each)]);
  return deeper(
    "Correlation",
    CORRELATION,
    matrices.length > 1
      ? h(
          "div",
          {class: "controls"},
          choice("of", options, String(matrices.indexOf(shown)), (value) => {
            engine.chosen = name(matrices[value]);
            draw(Number(value));
          }),
        )
      : "",
    body,
  );
}

function correlated(matrix) {
  const pairs = new Map(matrix.pairs.map((pair) => [`${pair.x}\n${pair.y}`, pair]));
  const row = (x) => [
    words(x),
    matrix.y.map((y) => {
      const pair = pairs.get(`${x}\n${y}`);
      if (!pair || !known(pair.r)) return {text: "", title: "too little is known"};
      const chance = pair.p < CHANCE ? `below ${CHANCE}` : pair.p.toFixed(3);
      return {
        text: `${decimals(pair.r)}${pair.strong ? " !" : ""}`,
        style: diverging(pair.r),
        title: `follows after ${seconds(pair.lag_seconds)}; ${count(pair.n_eff)} independent samples, p ${chance}`,
      };
    }),
  ];
  const best = (x) => Math.max(...matrix.y.map((y) => Math.abs(pairs.get(`${x}\n${y}`)?.r ?? 0)));
  const sorted = matrix.x.toSorted((one, other) => best(other) - best(one));
  const [strong, weak] = [sorted.filter((x) => best(x) >= WEAK), sorted.filter((x) => best(x) < WEAK)];
  const caption = `Pearson's r at the best lag, samples of ${seconds(matrix.step_seconds)} over the last ten minutes; ! is strong and not by chance`;
  const [first, more] = [strong.slice(0, ROWS), strong.slice(ROWS)];
  const matrixOf = (those, text) => cells(text, "Signal", matrix.y.map(words), those.map(row));
  const folded = (those, text) => (those.length ? h("details", {}, h("summary", {}, text), matrixOf(those, text)) : "");
  return h(
    "div",
    {},
    first.length ? matrixOf(first, caption) : h("p", {}, `Nothing with |r| from ${WEAK} on.`),
    folded(more, `${more.length} that go together less`),
    folded(weak, `${weak.length} weaker or unknown`),
  );
}

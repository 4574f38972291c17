// What was different while tokens were slow: signals before and after, dimensions, a surface of latency, correlation.

import {diverging, logShare, sequential} from "./colours.js";
import {choice, h, section, table} from "./dom.js";
import {amount, clock, count, known, seconds, words} from "./units.js";

/** Correlations from here on are told at once. */
const WEAK = 0.3;
const RATES = /faults|swap|pcie|nvlink/;

/** Of dimensions whose unit is of a time, rates are told as such. */
const measured = (value, unit, name) =>
  amount(value, RATES.test(name) && unit && !unit.endsWith("/s") ? `${unit}/s` : unit);

export function beforeDuring(found) {
  if (!found?.changes.length) return null;
  const before = found.before
    ? `against ${clock(found.before.start)} to ${clock(found.before.end)}`
    : "it was never quiet before";
  return section(
    "Before and after the worst stretch",
    table(
      `${clock(found.during.start)} to ${clock(found.during.end)} ${before}; ${seconds(found.excess_seconds)} lost, signals of ${found.server} ${found.model}`,
      [
        {title: "Signal", left: true, value: (row) => row.title},
        {title: "Before", value: (row) => measured(row.before, row.unit, row.signal)},
        {title: "During", value: (row) => measured(row.during, row.unit, row.signal)},
        {
          title: "Change",
          value: (row) =>
            known(row.change) ? `${row.change > 0 ? "+" : ""}${count(Math.round(100 * row.change))} %` : "-",
        },
      ],
      found.changes,
    ),
  );
}

export function different(matrix) {
  const rows = (those) =>
    table(
      "Means over the slow requests and over the others",
      [
        {title: "Dimension", left: true, value: (row) => row.title},
        {title: "Healthy", left: true, value: (row) => row.healthy || "-"},
        {title: "Slow", value: (row) => measured(row.slow_mean, row.unit, row.dimension)},
        {title: "Others", value: (row) => measured(row.other_mean, row.unit, row.dimension)},
        {title: "Effect, standard deviations", value: (row) => (known(row.effect) ? row.effect.toFixed(2) : "-")},
        {title: "r with time per token", value: (row) => (known(row.r) ? row.r.toFixed(2) : "-")},
        {title: "Requests", value: (row) => count(row.n)},
        {title: "Verdict", left: true, value: (row) => h("span", {class: row.verdict}, row.verdict)},
      ],
      those,
    );
  if (!matrix.length) return null;
  const differ = matrix.filter((row) => row.verdict === "bad" || row.verdict === "suspect");
  const others = matrix.filter((row) => !differ.includes(row));
  return section(
    "What was different",
    differ.length ? rows(differ) : h("p", {}, "Nothing that was watched."),
    others.length ? h("details", {}, h("summary", {}, `${others.length} that were not`), rows(others)) : "",
  );
}

function cells(caption, corner, columns, rows) {
  return h(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
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

export function surface(found) {
  if (!found) return null;
  const values = found.values.flat().filter(known);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const caption = `P${count(100 * found.quantile)} of ${words(found.measure)} by ${words(found.x.name)} (across) and ${words(found.y.name)} (down); cells of fewer than 5 requests are empty`;
  return section(
    "Response surface",
    cells(
      caption,
      `${words(found.y.name)} \\ ${words(found.x.name)}`,
      found.x.labels,
      found.y.labels.map((label, y) => [
        label,
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

export function correlation(matrices, engine) {
  if (!matrices.length) return section("Correlation", h("p", {}, "Not enough is known yet."));
  const body = h("div", {});
  const strong = (each) => each.pairs.filter((pair) => pair.strong).length;
  const name = (each) => `${each.model} (${each.server})${each.gpus.length ? "" : ", not bound to GPUs"}`;
  const most = matrices.toSorted((one, other) => strong(other) - strong(one))[0];
  const shown = matrices.find((each) => name(each) === engine.chosen) ?? most;
  const draw = (n) => body.replaceChildren(correlated(matrices[n]));
  draw(matrices.indexOf(shown));
  const options = matrices.map((each, n) => [String(n), name(each)]);
  return section(
    "Correlation",
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
      return {
        text: `${pair.r.toFixed(2)}${pair.strong ? " !" : ""}`,
        style: diverging(pair.r),
        title: `follows after ${seconds(pair.lag_seconds)}; ${count(pair.n_eff)} independent samples, p ${pair.p.toPrecision(1)}`,
      };
    }),
  ];
  const best = (x) => Math.max(...matrix.y.map((y) => Math.abs(pairs.get(`${x}\n${y}`)?.r ?? 0)));
  const sorted = matrix.x.toSorted((one, other) => best(other) - best(one));
  const [strong, weak] = [sorted.filter((x) => best(x) >= WEAK), sorted.filter((x) => best(x) < WEAK)];
  const caption = `Pearson's r at the best lag, samples of ${seconds(matrix.step_seconds)} over the last ten minutes; ! is strong and not by chance`;
  return h(
    "div",
    {},
    strong.length
      ? cells(caption, "Signal", matrix.y.map(words), strong.map(row))
      : h("p", {}, `Nothing with |r| from ${WEAK} on.`),
    weak.length
      ? h(
          "details",
          {},
          h("summary", {}, `${weak.length} weaker or unknown`),
          cells("Weaker or unknown", "Signal", matrix.y.map(words), weak.map(row)),
        )
      : "",
  );
}

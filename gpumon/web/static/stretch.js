// The stretch of time that Why is of: the last minutes, or from one moment to another, given by two times of day.

import {h} from "./dom.js";
import {clock, day} from "./units.js";

const DAY_S = 86_400;
/** Less than this tells nothing. */
const LEAST_S = 2;

/** Of an address, {from, to} in unix seconds; null where it has none, or none that makes sense. */
export function stretchOf(parameters) {
  const [from, to] = ["from", "to"].map((name) => Number(parameters.get(name) ?? NaN));
  return from > 0 && to - from >= LEAST_S && to < 1e11 ? {from, to} : null;
}

/** In whole seconds, all that was dragged over in it. */
export function rounded({from, to}) {
  const begin = Math.floor(from);
  return {from: begin, to: Math.max(Math.ceil(to), begin + LEAST_S)};
}

/** 3:05, 03:05:30: the last such moment that is not after now; null where it is no time of day. */
export function momentOf(text, now) {
  const found = /^([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?$/.exec(text.trim());
  if (!found) return null;
  const [hours, minutes, seconds] = found.slice(1).map((part) => Number(part ?? 0));
  const at = now - (now % DAY_S) + 3600 * hours + 60 * minutes + seconds;
  return at <= now ? at : at - DAY_S;
}

/**
 * Two times to be typed, and the way back to the last minutes. now: unix time, or undefined where it is not known.
 * onChange: called with {from, to}, or null for the last minutes.
 */
export function stretchControls(minutes, now, onChange) {
  const wrong = h("span", {class: "wrong", role: "status"});
  const field = (name) =>
    h("input", {type: "text", size: "8", maxlength: "8", placeholder: "hh:mm:ss", "aria-label": name});
  const [from, to] = [field("From, time of day, UTC"), field("To, time of day, UTC")];
  const whole = h("button", {type: "button", on: {click: () => onChange(null)}}, `The last ${minutes} minutes`);
  let latest = 0;
  let told = "";
  const choose = (event) => {
    event.preventDefault();
    const moment = Math.max(now() ?? 0, latest);
    const [begin, end] = [momentOf(from.value, moment), momentOf(to.value, moment)];
    const isRight = begin !== null && end !== null && end - begin >= LEAST_S;
    wrong.textContent = isRight ? "" : "Two times of day, hh:mm:ss, the first before the second.";
    if (isRight) onChange({from: begin, to: end});
  };
  const element = h(
    "form",
    {class: "controls", on: {submit: choose}},
    h("span", {}, "From ", from, " to ", to, " ", h("button", {}, "Show")),
    whole,
    wrong,
  );
  return {
    element,
    /** stretch: what is asked of, or null; said: its period, {since, until, known_since}. */
    tell(stretch, said) {
      const {from: since, to: until} = stretch ?? {from: Math.max(said.since, said.known_since ?? 0), to: said.until};
      latest = said.until;
      whole.hidden = !stretch;
      const text = `${day(since)} ${clock(since)} ${clock(until)}`;
      // What somebody types is left alone.
      if (text === told || element.contains(document.activeElement)) return;
      told = text;
      from.value = clock(since);
      to.value = clock(until);
    },
  };
}

// Figures as people read them, always with their unit; a dash for what is not known. The same as gpumon's reports.

const SCALES = {
  bytes: [
    [1e15, "PB"],
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
    [1, "B"],
  ],
  hertz: [
    [1e6, "MHz"],
    [1e3, "kHz"],
    [1, "Hz"],
  ],
  watts: [
    [1e6, "MW"],
    [1e3, "kW"],
    [1, "W"],
    [1e-3, "mW"],
  ],
  joules: [
    [1e9, "GJ"],
    [1e6, "MJ"],
    [1e3, "kJ"],
    [1, "J"],
  ],
  seconds: [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
  ],
};
const RATE = /\/s$/;

function digits(value) {
  if (value === 0 || Math.abs(value) < 5e-7) return "0";
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en-US", {maximumFractionDigits: Math.min(places, 9)});
}

function scaled(value, scales) {
  const [factor, name] = scales.find(([least]) => Math.abs(value) >= 0.9995 * least) ?? scales.at(-1);
  return `${digits(value / factor)} ${value === 0 ? scales.find(([least]) => least === 1)[1] : name}`;
}

export function known(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

/** By the unit as the API names it: ratio, hertz, watts, celsius, bytes/s, faults/s, s/s, … */
export function amount(value, unit = "") {
  if (!known(value)) return "-";
  const name = unit === "s" ? "seconds" : unit;
  if (name === "ratio" || name === "s/s") return `${digits(100 * value)} %`;
  if (name === "celsius") return `${digits(value)} °C`;
  if (name === "timestamp") return `${day(value)} ${clock(value)}`;
  if (name === "seconds" && Math.abs(value) >= 100) return duration(value);
  const base = name.replace(RATE, "");
  if (SCALES[base]) return scaled(value, SCALES[base]) + (RATE.test(name) ? "/s" : "");
  return `${digits(value)} ${name}`.trimEnd();
}

export const seconds = (value) => amount(value, "seconds");
export const percent = (value) =>
  !known(value) ? "-" : value > 0 && value < 0.005 ? "<1 %" : `${Math.round(100 * value)} %`;
export const rate = (value, what) => (known(value) ? `${digits(value)} ${what}/s` : "-");
export const count = (value) => (known(value) ? digits(value) : "-");

/** More or less by a ratio: +29 %, -3 %; from ten times on x 48. */
export function change(ratio) {
  if (!known(ratio)) return "-";
  if (ratio >= 9) return `x ${digits(1 + ratio)}`;
  return `${ratio > 0 ? "+" : ""}${Math.round(100 * ratio)} %`;
}

/** In whole seconds from ten of them on: 42 s, 3 min 20 s, 2 h 5 min. */
export function duration(value) {
  if (!known(value)) return "-";
  if (value < 10) return seconds(value);
  const whole = Math.round(value);
  if (whole < 120) return `${whole} s`;
  const [large, small, names] =
    whole < 7200
      ? [Math.floor(whole / 60), whole % 60, ["min", "s"]]
      : [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), ["h", "min"]];
  return `${large} ${names[0]}${small ? ` ${small} ${names[1]}` : ""}`;
}

/** 1 request, 2 requests. */
export const counted = (value, what) => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

/** Time of day, UTC. */
export const clock = (unix) => new Date(1000 * unix).toISOString().slice(11, 19);
export const day = (unix) => new Date(1000 * unix).toISOString().slice(0, 10);

const SHORT = {
  cpu: "CPU",
  cpus: "CPUs",
  dram: "DRAM",
  gpu: "GPU",
  gpus: "GPUs",
  kv: "KV",
  nvlink: "NVLink",
  pcie: "PCIe",
};

/** A name of the API in words: hw_thermal, inter_token_p95. */
export const words = (name) =>
  name
    .replaceAll("_", " ")
    .replace(/[a-z]+\d*/g, (word) =>
      Object.hasOwn(SHORT, word) ? SHORT[word] : /^(?:sm|xid|p\d+)$/.test(word) ? word.toUpperCase() : word,
    );

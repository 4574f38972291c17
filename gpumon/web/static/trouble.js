// Errors of this page are shown on it. A script of its own, before the modules: one that cannot be loaded is told, too.
"use strict";
(() => {
  const MOST = 5;
  const told = new Map();

  function tell(text) {
    const place = document.getElementById("trouble");
    if (place === null) {
      addEventListener("DOMContentLoaded", () => tell(text), {once: true});
      return;
    }
    const list = place.querySelector("ul");
    const key = String(text).slice(0, 300);
    const known = told.get(key);
    if (known) {
      known.count += 1;
      known.item.textContent = `${key} (${known.count} times)`;
    } else {
      const item = document.createElement("li");
      item.textContent = key;
      list.append(item);
      told.set(key, {item, count: 1});
      if (told.size > MOST) {
        const [oldest, {item: gone}] = told.entries().next().value;
        gone.remove();
        told.delete(oldest);
      }
    }
    place.hidden = false;
    place.querySelector("button").onclick = () => {
      told.clear();
      list.replaceChildren();
      place.hidden = true;
    };
  }

  addEventListener(
    "error",
    (event) => {
      if (event.target instanceof HTMLElement) {
        tell(`not loaded: ${event.target.src || event.target.href}`);
      } else {
        tell(`${event.message} (${(event.filename || "").replace(location.origin, "")}:${event.lineno})`);
      }
    },
    true,
  );
  addEventListener("unhandledrejection", (event) => tell(String(event.reason?.message ?? event.reason)));
  globalThis.tellTrouble = tell;
})();

// Elements. Data becomes text or an attribute, never markup.

/** attributes: class, on (listeners by event), style (properties by name); others as they are. Null leaves one out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Tables of so many columns are not made narrower than a desk's screen: they scroll. */
const BROAD = 7;

/** Sets a text only where it changed: screen readers and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table that scrolls sideways by itself. columns: {title, left, value: row => text or element}. */
export function table(caption, columns, rows, {key = null, mark = null} = {}) {
  const head = h(
    "tr",
    {},
    columns.map((column) => h("th", {scope: "col", class: column.left ? "left" : ""}, column.title)),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {class: mark?.(row) ?? "", "data-key": key?.(row) ?? null},
      columns.map((column) => h("td", {class: column.left ? "left" : ""}, column.value(row) ?? "-")),
    ),
  );
  return h(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
    h(
      "table",
      {class: columns.length >= BROAD ? "broad" : ""},
      h("caption", {}, caption),
      h("thead", {}, head),
      h("tbody", {}, body),
    ),
  );
}

let choices = 0;

/** A labelled choice. options: [value, text]. */
export function choice(label, options, value, onChange) {
  const id = `choice-${++choices}`;
  const select = h(
    "select",
    {id, on: {change: () => onChange(select.value)}},
    options.map(([key, text]) => h("option", {value: key, selected: key === value}, text)),
  );
  return h("span", {class: "choice"}, h("label", {for: id}, label), " ", select);
}

/** A part of a view under its heading. */
export function section(heading, ...children) {
  return h("section", {}, h("h2", {}, heading), children);
}

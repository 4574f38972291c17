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
/** Those of so many have no room on a phone: a card a row. */
const CARDS = 4;

/** Sets a text only where it changed: screen readers and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text of the API, in which `names` are code. */
export function prose(text) {
  return text.split(/`([^`]+)`/).map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

let box = null;

/** A word that a text explains: where the mouse rests on it, and in a box by a click, a tap or a key. */
export function term(word, text) {
  return h(
    "button",
    {type: "button", class: "term", title: text, on: {click: (event) => explain(event.currentTarget, text)}},
    word,
  );
}

/** The box is closed by a click elsewhere, or Escape: browsers do that. */
function explain(button, text) {
  box ??= h("div", {class: "help", popover: "auto", role: "note"});
  // Within the view, and gone with it.
  document.getElementById("main").append(box);
  box.textContent = text;
  box.showPopover();
  const at = button.getBoundingClientRect();
  const {offsetWidth: width, offsetHeight: height} = box;
  const {clientWidth: most, clientHeight: tall} = document.documentElement;
  const below = at.bottom + 4 + height <= tall ? at.bottom + 4 : Math.max(4, at.top - 4 - height);
  box.style.setProperty("left", `${Math.max(8, Math.min(at.left, most - width - 8))}px`);
  box.style.setProperty("top", `${below}px`);
}

/**
 * A table that scrolls sideways by itself, and on a phone, where it is broad, is a card a row. columns: {title, left, help, value: row =>
 * text or element}; help explains the title. Where display makes them something else, the roles are still those of a
 * table.
 */
export function table(caption, columns, rows, {key = null, mark = null} = {}) {
  const side = (column) => (column.left ? "left" : "");
  const head = (column) => (column.help ? term(column.title, column.help) : column.title);
  const cell = (column, row) => {
    const value = column.value(row) ?? "-";
    const nothing = value === "-" || value === "";
    return h(
      "td",
      {class: `${side(column)}${nothing ? " none" : ""}`, role: "cell", "data-title": column.title},
      value,
    );
  };
  const explained = columns.filter((column) => column.help);
  return h(
    "div",
    {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
    h(
      "table",
      {class: columns.length >= BROAD ? "rows broad" : columns.length >= CARDS ? "rows" : "", role: "table"},
      h("caption", {}, caption),
      h(
        "thead",
        {role: "rowgroup"},
        h(
          "tr",
          {role: "row"},
          columns.map((column) => h("th", {scope: "col", role: "columnheader", class: side(column)}, head(column))),
        ),
      ),
      h(
        "tbody",
        {role: "rowgroup"},
        rows.map((row) =>
          h(
            "tr",
            {role: "row", class: mark?.(row) ?? "", "data-key": key?.(row) ?? null},
            columns.map((column) => cell(column, row)),
          ),
        ),
      ),
    ),
    explained.length && columns.length >= CARDS
      ? h(
          "p",
          {class: "terms"},
          "What is ",
          explained.flatMap((column, n) => [n ? ", " : "", head(column)]),
          "?",
        )
      : null,
  );
}

/** The first rows of a table, and the others when they are asked for. */
export function firstOf(most, rows, make, others = "more") {
  const rest = rows.slice(most);
  return [
    make(rows.slice(0, most)),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} ${others}`), make(rest)) : null,
  ];
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

/** On a phone there is little room: less is told at once. */
export const isNarrow = () => matchMedia("(max-width: 700px)").matches;

/** A part that not everybody needs: on a phone it is opened by its heading. text: what it is, where that needs saying. */
export function deeper(heading, text, ...children) {
  return h(
    "section",
    {},
    h(
      "details",
      {class: "part", open: !isNarrow()},
      h("summary", {}, h("h2", {}, heading)),
      text ? h("p", {class: "hint"}, text) : null,
      children,
    ),
  );
}

// Elements without HTML: text is only ever set as text.

const svgSpace = "http://www.w3.org/2000/svg";

// make returns an element with a class, and children that are elements or text.
export function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// attributes sets attributes and returns the element.
export function attributes(e, values) {
  for (const [name, value] of Object.entries(values)) e.setAttribute(name, value);
  return e;
}

export function link(href, className, ...children) {
  return attributes(make("a", className, ...children), { href });
}

export function svg(tag, values, text) {
  const e = attributes(document.createElementNS(svgSpace, tag), values);
  if (text !== undefined) e.textContent = text;
  return e;
}

// write sets the text of an element if it differs, so that nothing is drawn for no reason.
export function write(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}

// foreign returns text of a store, kept apart from the direction of the text around it.
export function foreign(text, className) {
  return make("bdi", className, text);
}

// What the pages do beyond plain HTML: live search, answers in place, parts that load later, runs
// that are followed. Everything works without it, by loading whole pages.
"use strict";

const FRAGMENT = { headers: { "X-Fragment": "1" } };

async function fetchPart(path, options) {
  const reply = await fetch(path, { ...FRAGMENT, ...options });
  if ((reply.headers.get("Content-Type") || "").startsWith("application/json")) {
    throw new Error((await reply.json()).error.message);
  }
  return { created: reply.headers.get("Location"), html: await reply.text() };
}

function parse(html) {
  return new DOMParser().parseFromString(html, "text/html").body;
}

function show(box, ...nodes) {
  box.replaceChildren(...nodes);
  prepare(box);
}

// A disabled button loses the focus, and the keyboard its place.
function enable(button) {
  button.disabled = false;
  if (document.activeElement === document.body) {
    button.focus();
  }
}

function failed(box, error) {
  const line = document.createElement("p");
  line.className = "notice error";
  line.setAttribute("role", "alert");
  const lost = error instanceof TypeError; // so fetch calls a connection that fails
  line.textContent = lost ? "The server cannot be reached; try again." : error.message;
  show(box, line);
}

// A search form that answers while one types.
function live(form) {
  const box = document.getElementById(form.dataset.live);
  let timer, latest = 0;
  const search = async () => {
    const number = ++latest;
    const path = `${form.action}?${new URLSearchParams(new FormData(form))}`;
    try {
      const part = parse((await fetchPart(path)).html).querySelector(`#${box.id}`);
      if (number === latest && part) {
        show(box, ...part.childNodes);
        history.replaceState(null, "", path);
      }
    } catch (error) {
      failed(box, error);
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 150);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    search();
  });
}

// A form whose answer appears below it.
function replaces(form) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const box = document.getElementById(form.dataset.replaces);
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    box.setAttribute("aria-busy", "true");
    try {
      const body = new URLSearchParams(new FormData(form));
      const page = parse((await fetchPart(form.action, { method: "POST", body })).html);
      const part = page.querySelector(`#${box.id}`) || page;
      show(box, ...part.childNodes);
      box.scrollIntoView({ block: "nearest" });
    } catch (error) {
      failed(box, error);
    } finally {
      enable(button);
      box.removeAttribute("aria-busy");
    }
  });
}

// A part of a page behind a link, which is loaded into its place.
function loads(link) {
  const load = async () => {
    const box = link.parentElement;
    if (document.activeElement === link) {
      box.tabIndex = -1;
      box.focus();
    }
    box.setAttribute("aria-busy", "true");
    box.textContent = "Loading …";
    try {
      show(box, ...parse((await fetchPart(link.href)).html).childNodes);
    } catch (error) {
      failed(box, error);
    } finally {
      box.removeAttribute("aria-busy");
    }
  };
  if (link.dataset.load === "now") {
    load();
  } else {
    link.setAttribute("role", "button");
    link.addEventListener("click", (event) => {
      event.preventDefault();
      load();
    });
    link.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        event.preventDefault();
        load();
      }
    });
  }
}

// A box that narrows a list.
function filters(box) {
  const list = document.getElementById(box.dataset.filter);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const item of list.children) {
      const text = item.textContent.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
    }
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault();
  });
}

// A file whose text goes into a form.
function fills(input) {
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (!file) return;
    document.getElementById(input.dataset.fills).value = await file.text();
    document.getElementById("file-name").value = file.name;
  });
}

// A form whose rows are sent as they are, so that their size is that of the file.
function uploads(form) {
  const box = document.getElementById(form.dataset.uploads);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const rows = form.elements.rows.value;
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    try {
      if (new Blob([rows]).size > Number(form.dataset.most)) {
        throw new Error(`The rows are larger than ${form.dataset.size}; upload fewer.`);
      }
      const file = document.getElementById("file-name").value;
      const path = `${form.action}?${new URLSearchParams({ file })}`;
      const { created, html } = await fetchPart(path, {
        method: "POST", body: rows, headers: { ...FRAGMENT.headers, "Content-Type": "text/plain" },
      });
      if (created) {
        location.href = created;
      } else {
        show(box, ...parse(html).childNodes);
      }
    } catch (error) {
      failed(box, error);
    } finally {
      enable(button);
    }
  });
}

// A run that is followed until it ends. Only what has changed is replaced, so that a screen reader
// reads the status once, and the button keeps the focus.
async function poll(box) {
  if (!box.dataset.poll) return;
  await new Promise((resolve) => setTimeout(resolve, 500));
  try {
    const part = parse((await fetchPart(location.href)).html).querySelector(`#${box.id}`);
    if (part) {
      const focused = box.contains(document.activeElement);
      const tags = (root) => [...root.children].map((node) => node.tagName).join();
      const same = tags(box) === tags(part);
      [...part.children].forEach((node, index) => {
        const old = box.children[index];
        if (!same) return;
        if (node.id === "status") {
          if (old.textContent !== node.textContent) old.textContent = node.textContent;
        } else if (node.tagName === "PROGRESS") {
          old.max = node.max;
          if (node.hasAttribute("value")) old.value = node.value;
        } else if (node.tagName !== "DETAILS" && old.outerHTML !== node.outerHTML) {
          old.replaceWith(node.cloneNode(true));
        }
      });
      if (!same) show(box, ...part.childNodes);
      if (focused && !box.contains(document.activeElement)) {
        const next = box.querySelector("button, a");
        if (next) next.focus();
      }
      if (!part.dataset.poll) delete box.dataset.poll;
    }
  } catch (error) {
    await new Promise((resolve) => setTimeout(resolve, 2000)); // the server may come back
  }
  poll(box);
}

function prepare(root) {
  root.querySelectorAll("form[data-live]").forEach(live);
  root.querySelectorAll("form[data-replaces]").forEach(replaces);
  root.querySelectorAll("a[data-load]").forEach(loads);
  root.querySelectorAll("input[data-filter]").forEach(filters);
  root.querySelectorAll("input[data-fills]").forEach(fills);
  root.querySelectorAll("form[data-uploads]").forEach(uploads);
}

prepare(document);
document.querySelectorAll("[data-poll]").forEach(poll);

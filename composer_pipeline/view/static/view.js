"use strict";
// The viewer's front end. Pages come from a server (fetch) or from a bundle's files (script tags,
// which a browser also loads from a folder). Texts are set as text, never as markup.

const inBundle = document.documentElement.dataset.bundle === "yes";
const main = document.getElementById("main");
const notice = document.getElementById("notice");
const PAGE = 100;
const LISTS = ["made", "dropped", "teacher"];

// -- pages ---------------------------------------------------------------------

const waiting = new Map();
const loaded = new Map();
globalThis.composer = {
  async put(name, sessions, packed) {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    waiting.get(name)?.resolve(await new Response(stream).json());
  },
};

function file(name) {
  if (!loaded.has(name)) {
    loaded.set(name, new Promise((resolve, reject) => {
      waiting.set(name, { resolve });
      const script = document.createElement("script");
      script.src = `data/${encodeURIComponent(name)}.js`;
      script.onerror = () => reject(new Error(
        `${name} is not in this bundle: a session in it was forgotten or withdrawn since. ` +
        "Make the bundle again: composer-pipeline view --bundle FOLDER"));
      document.head.append(script);
    }));
  }
  return loaded.get(name);
}

async function get(name, params) {
  if (inBundle) return fromBundle(name, params);
  let answer;
  try {
    answer = await fetch(`api/${name}${params?.size ? "?" + params : ""}`);
  } catch {
    throw new Error("The server does not answer: composer-pipeline view has ended.");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

async function fromBundle(name, params = new URLSearchParams()) {
  const [kind, which] = [name.split("/")[0], name.split("/").slice(1).map(decodeURIComponent).join("/")];
  if (kind === "rows") {
    const found = await matching(params);
    const offset = Number(params.get("offset") ?? 0);
    return { total: found.length, offset, rows: found.slice(offset, offset + PAGE) };
  }
  if (kind === "facets") {
    const { facets } = await file("lake");
    const counts = {};
    for (const facet of Object.keys(facets)) {
      const others = new URLSearchParams(params);
      others.delete(facet);
      const count = new Map();
      for (const row of await matching(others))
        for (const value of valuesOf(row, facet)) count.set(value, (count.get(value) ?? 0) + 1);
      counts[facet] = [...count].sort((a, b) =>
        facet === "day" ? (a[0] < b[0] ? 1 : -1) : b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    }
    return counts;
  }
  if (kind === "session") return sessionFile(which);
  if (kind === "state") {
    const { rows } = await file("rows");
    const row = rows.find((each) => each.state_id === which);
    if (!row) throw new Error(`state ${which} is not in this bundle: it was withdrawn, or never was`);
    const session = await sessionFile(row.session_id);
    const list = await matching(params);
    const at = list.findIndex((each) => each.state_id === which);
    return {
      ...row, ...session.states.find((each) => each.state_id === which), position: at < 0 ? null : at,
      around: at < 0 ? [null, null] : [list[at - 1]?.state_id ?? null, list[at + 1]?.state_id ?? null],
    };
  }
  return file(name.replace("/", "-"));
}

async function sessionFile(session) {
  const { files } = await file("rows");
  if (!files[session]) throw new Error(`session ${session} is not in this bundle`);
  return file(files[session]);
}

function valuesOf(row, facet) {
  const value = row[facet];
  if (LISTS.includes(facet)) return value.length ? value : ["none"];
  return [value ?? "none"];
}

async function matching(params) {
  const { rows } = await file("rows");
  const { facets } = await file("lake");
  const words = (params.get("q") ?? "").toLowerCase();
  const texts = words ? await allTexts() : null;
  return rows.filter((row) =>
    Object.keys(facets).every((facet) => {
      const wanted = params.getAll(facet);
      return !wanted.length || valuesOf(row, facet).some((value) => wanted.includes(value));
    }) && (!words || texts.get(row.state_id).includes(words) || row.state_id.startsWith(words)
      || row.session_id.startsWith(words)));
}

let texts;
const allTexts = () => (texts ??= readTexts());
async function readTexts() {
  const { files } = await file("rows");
  const found = new Map();
  for (const name of Object.values(files)) {
    const session = await file(name).catch(() => ({ states: [] })); // forgotten since
    for (const each of session.states) found.set(each.state_id, textOf(each));
  }
  return { get: (id) => found.get(id) ?? "" };
}

function textOf(state) {
  const actions = [state.agent, ...state.teachers.map((each) => each.action)].filter(Boolean);
  const parts = actions.flatMap((a) => [a.text, ...a.tool_calls.flatMap((c) => [c.name, ...Object.values(c.arguments)])]);
  parts.push(...state.seen.map((block) => block.text), state.hint?.text);
  return parts.map((part) => (typeof part === "string" ? part : JSON.stringify(part))).join("\n").toLowerCase();
}

// -- elements ------------------------------------------------------------------

function h(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
const link = (href, text, about = {}) => h("a", { href, ...about }, text);
const pre = (text) => h("pre", { tabindex: "0" }, text);
const short = (path) => path.split("/").filter(Boolean).slice(-1)[0] ?? path;
const usd = (text) => `$${Number(text).toFixed(Number(text) < 1 ? 6 : 2)}`;
const GOOD = ["pair", "hint", "fixup", "recovery", "hindsight", "tests passed", "kept", "gold"];
const BAD = ["dropped", "a call failed", "tests failed", "taken back", "interrupted", "corrected by the user", "gone", "mistake"];
const colour = (word) => (GOOD.includes(word) ? "good" : BAD.includes(word) ? "bad" : "");

function table(caption, heads, rows) {
  const head = heads.map((text) => h("th", { scope: "col", class: typeof rows[0]?.[heads.indexOf(text)] === "number" ? "n" : null }, text));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) =>
        at === 0 ? h("th", { scope: "row" }, cell)
          : h("td", { class: typeof cell === "number" ? "n" : null }, typeof cell === "number" ? cell.toLocaleString("en") : cell)))))));
}

function drawing(svg, caption) {
  const box = h("figure", {}, h("figcaption", {}, caption));
  box.insertAdjacentHTML("beforeend", svg); // drawn and escaped by charts.py
  return box;
}

// -- the list ------------------------------------------------------------------

let lake;
const route = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path || "states", query: new URLSearchParams(query ?? "") };
};
const withQuery = (path, query) => `#/${path}${query.size ? "?" + query : ""}`;
const listQuery = (query) => {
  const kept = new URLSearchParams();
  for (const [name, value] of query) if (name === "q" || name in lake.facets) kept.append(name, value);
  return kept;
};

async function states(query) {
  const params = listQuery(query);
  const here = new URLSearchParams(params);
  if (query.get("offset")) here.set("offset", query.get("offset"));
  const [page, facets] = await Promise.all([get("rows", here), get("facets", params)]);
  const change = (name, value) => {
    const next = new URLSearchParams(params);
    next.delete(name);
    if (value) next.set(name, value);
    location.hash = withQuery("states", next);
  };
  const selects = Object.entries(lake.facets).map(([facet, label]) => {
    const chosen = params.get(facet) ?? "";
    const choices = facets[facet].some(([value]) => value === chosen) || !chosen ? facets[facet] : [[chosen, 0], ...facets[facet]];
    return h("label", {}, label, h("select", {
      name: facet, class: chosen ? "set" : null, onchange: (event) => change(facet, event.target.value),
    }, h("option", { value: "" }, "any"), choices.map(([value, count]) =>
      h("option", { value, selected: value === chosen }, `${facet === "repository" ? short(value) : value} (${count.toLocaleString("en")})`))));
  });
  const search = h("input", { type: "search", id: "search", value: params.get("q") ?? "", placeholder: "words, a path, an id" });
  search.addEventListener("change", () => change("q", search.value.trim()));
  const last = Math.min(page.offset + PAGE, page.total);
  const paged = (offset, text) => {
    const next = new URLSearchParams(params);
    if (offset) next.set("offset", offset);
    return link(withQuery("states", next), text);
  };
  return [
    h("h1", {}, params.size ? "States that match" : "All states"),
    h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); change("q", search.value.trim()); } },
      h("div", { class: "filters" }, h("label", {}, "search", search), selects)),
    h("div", { class: "steps" },
      h("span", { id: "count" }, page.total ? `${(page.offset + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${page.total.toLocaleString("en")}` : "No state matches."),
      page.offset ? paged(page.offset - PAGE, "previous page") : null,
      last < page.total ? paged(last, "next page") : null,
      params.size ? link("#/states", "clear the filters") : null),
    page.total ? list(page.rows, params) : null,
  ];
}

function list(rows, params) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "States" }, h("table", { id: "list" },
    h("caption", {}, "One row for each response of the agent: what it did, and what came of it."),
    h("thead", {}, h("tr", {}, ["what the agent did", "what came of it", "why"].map((text) => h("th", { scope: "col" }, text)),
      ["the trace, git", "session"].map((text) => h("th", { scope: "col", class: "wide" }, text)))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("td", { class: "did" }, link(withQuery(`state/${row.state_id}`, params), row.did || "(nothing)", { class: "row" })),
      h("td", {}, [...row.made, row.tier, row.split].filter(Boolean).map((word) => badge(word, colour(word)))),
      h("td", {}, row.reason ? lake.reasons[row.reason] ?? row.reason : "no vote yet", row.n_families ? h("span", { class: "soft" }, ` ${row.n_agree} of ${row.n_families}`) : null),
      h("td", { class: "wide" }, [row.outcome, row.verdict, row.fate].filter(Boolean).map((word) => badge(word, colour(word)))),
      h("td", { class: "wide soft" }, link(`#/session/${encodeURIComponent(row.session_id)}?at=${row.state_id}`, `${short(row.repository)}, turn ${row.turn}`), ` ${row.day}`))))));
}

// -- one state -----------------------------------------------------------------

async function state(id, query) {
  const params = listQuery(query);
  const found = await get(`state/${encodeURIComponent(id)}`, params);
  const [before, after] = found.around;
  const step = (to, text, rel) => (to ? link(withQuery(`state/${to}`, params), text, { rel }) : h("span", { class: "soft" }, text));
  return [
    h("h1", {}, found.did || "(nothing)"),
    h("p", { class: "crumbs" }, link(`#/session/${encodeURIComponent(found.session_id)}?at=${id}`, `session ${found.session_id}`, { rel: "up" }),
      ` · ${found.repository} · turn ${found.turn} · ${found.day}${found.model ? " · " + found.model : ""}`),
    h("div", { class: "steps" }, step(before, "previous (k)", "prev"), step(after, "next (j)", "next"),
      link(withQuery("states", params), "the list (u)", { rel: "index" }),
      found.position === null ? badge("not in the filtered list", "warn") : null,
      [...found.made, found.tier, found.outcome, found.verdict, found.fate, found.split].filter(Boolean).map((word) => badge(word, colour(word)))),
    h("p", { class: "why" }, found.why),
    found.tier ? h("p", { class: "soft" }, found.rule) : null,
    h("h2", {}, "The agent beside each teacher"),
    h("div", { class: "answers" }, answer("the agent", found.agent, null, { class: found.reason === "pair" ? "agent" : "", note: found.agent.model ?? "" }),
      found.teachers.map((each) => teacher(each, found.agent))),
    cameOf(found),
    h("h2", {}, "What the agent saw"),
    found.before ? h("p", {}, link(`#/session/${encodeURIComponent(found.session_id)}?at=${id}`, `${found.before.toLocaleString("en")} earlier messages of the session`)) : null,
    blocks(found.seen),
    h("h2", {}, "What followed"), found.then.length ? blocks(found.then) : h("p", {}, "Nothing: it was the last response."),
  ];
}

function teacher(each, agent) {
  if (!each.usable) {
    return h("section", { class: "card" }, h("h3", {}, each.teacher), h("p", {}, badge(each.status, "warn"), " ", each.detail));
  }
  const level = each.level_to_agent;
  const notes = [
    each.votes ? (each.wins ? badge("in the winning group", "good") : badge(`group ${each.cluster}`)) : badge("no vote", "warn"),
    badge(level.level === "none" ? "unlike the agent" : `like the agent at ${level.level}`, ["L0", "L1", "L2"].includes(level.level) ? "" : "bad"),
  ];
  const about = h("p", {}, notes, h("span", { class: "soft" }, `${level.why}. ${each.family}${each.simulated ? ", simulated" : ""}, ${usd(each.cost_usd)}`));
  return answer(each.teacher, each.action, agent, { class: each.wins ? "winner" : "", note: about });
}

// A call's fields beside the agent's: what the agent's call of the same tool lacks is marked.
function calls(action, agent) {
  return action.tool_calls.map((call) => {
    const own = agent?.tool_calls.find((other) => other.name === call.name);
    const fields = Object.entries(call.arguments).map(([field, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
      const same = !agent || (own && JSON.stringify(own.arguments[field]) === JSON.stringify(value));
      return [h("dt", {}, field), h("dd", { class: same ? null : "differs" }, pre(text))];
    });
    return [h("p", { class: agent && !own ? "differs" : null }, h("strong", {}, call.name)), h("dl", {}, fields)];
  });
}

function answer(name, action, agent, { class: kind, note }) {
  return h("section", { class: `card ${kind}` }, h("h3", {}, name), typeof note === "string" ? h("p", { class: "soft" }, note) : note,
    action.text ? pre(action.text) : null, calls(action, agent), action.text || action.tool_calls.length ? null : h("p", { class: "soft" }, "nothing"));
}

const SOURCES = { fixup: "fix-up: the edit with its own later fix", recovery: "recovery: its own later call that worked", hindsight: "hindsight: the edit as it was committed" };
function cameOf(found) {
  const parts = [];
  const fate = (of) => h("ul", {}, Object.entries(of).map(([stage, text]) => h("li", {}, h("strong", {}, stage), `: ${text}`)));
  if (found.pair_id && found.reason === "pair") {
    parts.push(h("h3", {}, `Pair ${found.pair_id.slice(0, 12)}`), fate(found.stages));
  }
  for (const pair of found.own_pairs) {
    parts.push(h("h3", {}, SOURCES[pair.reason] ?? pair.reason), h("p", {}, pair.why), fate(pair.fate),
      h("div", { class: "answers" }, answer("chosen", pair.chosen, found.agent, { class: "winner", note: "" })));
  }
  if (found.hint) {
    parts.push(h("h3", {}, "Hint"), pre(found.hint.text), h("p", { class: "soft" },
      `from ${found.hint.source}, ${found.hint.verdict}, found by ${found.hint.culprit_by ?? "itself"}; the failure: `,
      link(`#/state/${found.hint.error_state_id}`, found.hint.error_kind)));
  }
  if (found.verdict) {
    parts.push(h("h3", {}, "Whose mistake"), h("p", {}, badge(found.verdict, colour(found.verdict)), " ", found.why_verdict ?? "",
      found.culprit_state_id ? [" The cause: ", link(`#/state/${found.culprit_state_id}`, "the action that caused it")] : null));
  }
  if (found.chain.length) {
    parts.push(h("h3", {}, "Edit, failure, fix, check"), h("ol", {}, found.chain.map((each) =>
      h("li", {}, `${each.step}: `, link(`#/state/${each.state_id}`, each.what || "(nothing)")))));
  }
  const horizons = Object.values(found.fates);
  if (horizons.length) {
    parts.push(table("Lines of the edit that are alive, from git", ["horizon", "lines alive", "how, or why not"], horizons.map((row) =>
      [row.horizon, row.alive === null ? row.status : `${row.alive} of ${row.lines}`, row.why || row.how || ""])));
  }
  return parts.length ? [h("h2", {}, "What came of it"), parts] : null;
}

const KINDS = { call: "call", result: "result", text: "text" };
function blocks(some) {
  return some.map((block) => h("div", { class: `block ${block.error ? "error" : ""}` },
    h("div", { class: "who" }, `${block.role === "assistant" ? "agent" : block.kind === "result" ? "tool" : "user"}${block.error ? ", failed" : ""}${KINDS[block.kind] ? "" : ", " + block.kind}`), pre(block.text)));
}

// -- sessions ------------------------------------------------------------------

async function sessions() {
  const found = await get("sessions");
  return [h("h1", {}, `${found.length.toLocaleString("en")} sessions`), table("Each session, the latest day first.",
    ["task", "day", "repository", "states", "failed", "hints", "pairs", "teachers' bill"],
    found.map((row) => [link(`#/session/${encodeURIComponent(row.session_id)}`, row.task || row.session_id, { class: "row" }), row.day, short(row.repository),
      row.states, row.errors, row.hints, row.pairs, usd(row.cost)]))];
}

async function session(id, query) {
  const found = await get(`session/${encodeURIComponent(id)}`);
  const at = query.get("at");
  const first = found.rows[0];
  const known = new Map(found.states.map((each) => [each.state_id, each]));
  const parts = found.rows.map((row) => {
    const one = known.get(row.state_id);
    return h("div", { class: `turn ${row.state_id === at ? "here" : ""}`, id: `turn-${row.state_id}` },
      blocks(one.seen),
      h("div", { class: "block" }, h("div", { class: "who" }, `agent${row.subagent ? " " + row.subagent : ""}, turn ${row.turn} `),
        h("p", {}, link(`#/state/${row.state_id}`, row.did || "(nothing)", { class: "row" }), " ",
          [...row.made, row.outcome, row.verdict, row.fate].filter(Boolean).map((word) => badge(word, colour(word)))),
        one.agent.text ? pre(one.agent.text) : null,
        one.agent.tool_calls.length ? h("details", {}, h("summary", {}, "the whole call"), calls(one.agent)) : null));
  });
  requestAnimationFrame(() => document.getElementById(`turn-${at}`)?.scrollIntoView());
  return [h("h1", {}, first.task || id), h("p", { class: "crumbs" }, `session ${id} · ${first.repository} · ${first.day} · ${found.rows.length} responses`),
    h("label", {}, "Jump to ", h("select", { onchange: (event) => document.getElementById(`turn-${event.target.value}`).scrollIntoView() },
      found.rows.map((row) => h("option", { value: row.state_id, selected: row.state_id === at }, `${row.subagent ? row.subagent + ", " : ""}turn ${row.turn}: ${row.did.slice(0, 70)}`)))),
    parts];
}

// -- money, runs, before and after -----------------------------------------------

async function money() {
  const found = await get("money");
  const teachers = [...new Set(found.rows.map((row) => row.teacher))];
  const days = [...new Set(found.rows.map((row) => row.day))];
  const of = (day, name) => Number(found.rows.find((row) => row.day === day && row.teacher === name)?.usd ?? 0);
  const total = (day) => teachers.reduce((sum, name) => sum + of(day, name), 0);
  return [h("h1", {}, "Money"),
    found.chart ? drawing(found.chart, "Billed by day of the session and teacher") : null,
    found.rows.length ? table("Billed for replies, by day of the session and teacher, in US dollars", ["day", ...teachers, "all"],
      days.map((day) => [day, ...teachers.map((name) => of(day, name).toFixed(6)), total(day).toFixed(6)])) : h("p", {}, "No teacher was asked."),
    found.scopes.length ? table("Ceilings, and what counts against them, in US dollars", ["scope", "ceiling", "spent", "reserved", "unknown", "used"],
      found.scopes.map((row) => [row.scope, row.ceiling_usd ?? "none", row.spent_usd, row.reserved_usd, row.unknown_usd,
        row.ceiling_usd === null ? "" : `${((100 * Number(row.spent_usd)) / Number(row.ceiling_usd)).toFixed(1)} %`])) : null];
}

async function runs() {
  const found = await get("runs");
  if (!found.runs.length) return [h("h1", {}, "Training"), h("p", {}, "No run yet: composer-pipeline train")];
  const drawn = (charts) => h("div", { class: "charts" }, Object.entries(charts).map(([quantity, svg]) => drawing(svg, quantity)));
  return [h("h1", {}, "Training"),
    Object.keys(found.compared).length ? [h("h2", {}, "Run against run"), drawn(found.compared)] : null,
    found.runs.map((run) => [h("h2", {}, run.name), run.evaluated ? h("p", {}, link(`#/evaluation/${encodeURIComponent(run.name)}`, "before and after, state by state", { class: "row" })) : null,
      drawn(run.charts),
      table(`About ${run.name}`, ["fact", "value"], Object.entries(run.about).map(([name, value]) => [name.replaceAll("_", " "), String(value)]))])];
}

async function evaluation(name) {
  const found = await get(`evaluation/${encodeURIComponent(name)}`);
  const shown = (side) => [badge(side.canonical ? "right" : "not right", side.canonical ? "good" : "bad"), pre(side.text)];
  return [h("h1", {}, `Before and after ${name}`),
    h("p", { class: "why" }, found.worse?.length ? `Worse: ${found.worse.join(", ")}.` : "Nothing that is guarded got worse.",
      found.unknown?.length ? ` Not decided: ${found.unknown.join(", ")}.` : ""),
    table(`${found.changed.length} of ${found.states} held-out states, those that changed most first`, ["state", "log p(right) per token", "before", "after"],
      found.changed.map((each) => [link(`#/state/${each.state_id}`, `${each.kind}, ${each.state_id.slice(0, 12)}`, { class: "row" }),
        `${each.right >= 0 ? "+" : "−"}${Math.abs(each.right).toFixed(4)}`, shown(each.before), shown(each.after)]))];
}

// -- routes and keys -------------------------------------------------------------

const PAGES = { states, state, sessions, session, money, runs, evaluation };
const CURRENT = { state: "states", session: "sessions", evaluation: "runs" };
let turn = 0;

async function show() {
  const { path, query } = route();
  if (path === "skip") { main.focus(); return; }
  const rest = path.split("/");
  const kind = path === "state/" ? "states" : rest[0];
  const mine = ++turn;
  try {
    lake ??= await get("lake");
    document.getElementById("name").textContent = lake.name;
    if (!(kind in PAGES)) throw new Error(`the viewer has no page ${path}`);
    const which = decodeURIComponent(rest.slice(1).join("/"));
    const content = await (which ? PAGES[kind](which, query) : PAGES[kind](query));
    if (mine !== turn) return; // another page was asked for meanwhile
    main.replaceChildren(...[content].flat(9).filter(Boolean));
    stale();
  } catch (error) {
    if (mine !== turn) return;
    main.replaceChildren(h("h1", {}, "This cannot be shown"), h("p", {}, error.message), h("p", {}, link("#/states", "All states")));
  }
  document.title = `${main.querySelector("h1")?.textContent.slice(0, 80) ?? "view"} · composer-pipeline`;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.hash === `#/${CURRENT[kind] ?? kind}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  if (!query.get("at")) window.scrollTo(0, 0);
  main.dataset.shown = location.hash;
}

async function stale() {
  const days = await get("stale").catch(() => []); // the page itself says what is wrong
  notice.textContent = days.length ? `${days.length} days are not current (composer-pipeline reparse): ${days[0]}` : "";
}

document.getElementById("keys").addEventListener("click", (event) => {
  const help = document.getElementById("help");
  help.hidden = !help.hidden;
  event.target.setAttribute("aria-expanded", String(!help.hidden));
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const rel = { j: "next", k: "prev", u: "index", s: "up" }[event.key];
  if (event.key === "/") {
    event.preventDefault();
    const search = document.getElementById("search");
    if (search) search.focus();
    else location.hash = "#/states";
  } else if (rel) {
    const go = main.querySelector(`a[rel=${rel}]`);
    if (go) { location.hash = go.hash; return; }
    if (event.key !== "j" && event.key !== "k") return;
    const rows = [...main.querySelectorAll("a.row")];
    const at = rows.indexOf(document.activeElement);
    rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
  }
});

window.addEventListener("hashchange", show);
show();

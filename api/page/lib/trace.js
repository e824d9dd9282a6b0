// A Chrome trace as it is drawn: a track a thread, in it a row a depth; and what each part of the step takes.

const OURS = "millrace";
const MOST_OPERATORS = 10;

/** The trace in a file that is compressed with gzip. */
export async function readTrace(blob) {
  const plain = blob.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Trace(await new Response(plain).json());
}

/** Times are in microseconds from the first step on. */
export class Trace {
  constructor({ traceEvents }) {
    const names = new Map(),
      threads = new Map();
    for (const event of traceEvents) {
      const key = `${event.pid}/${event.tid}`;
      if (event.ph === "M" && event.name === "thread_name") names.set(key, event.args.name);
      if (event.ph !== "X") continue;
      if (!threads.has(key)) threads.set(key, []);
      threads.get(key).push({ name: event.name, begin: event.ts, end: event.ts + event.dur, ours: event.cat === OURS });
    }
    this.tracks = [...threads].map(([key, events]) => track(names.get(key) ?? key, events));
    const stepped = (one) => one.events.some(({ name, ours }) => ours && name === "step");
    this.tracks.sort((a, b) => stepped(b) - stepped(a) || b.events.length - a.events.length);
    const own = this.tracks[0]?.events ?? [];
    this.steps = own.filter(({ name, ours }) => ours && name === "step");
    this.end = Math.max(0, ...this.steps.map(({ end }) => end));
  }

  /** What the parts of a step take, the longest first: [{ name, us, share, times }], each without the parts within it,
   * as means over the steps. What lies in no part is `rest`. */
  get parts() {
    const found = sums(
      this.#training.filter(({ ours }) => ours),
      (event) => (event.name === "step" ? "rest" : event.name),
    );
    return this.#means(found);
  }

  /** The operators that take longest by themselves, on the thread that trains. */
  get operators() {
    const within = ({ ours, begin }) => !ours && begin < this.end;
    return this.#means(sums(this.#training.filter(within), ({ name }) => name)).slice(0, MOST_OPERATORS);
  }

  get #training() {
    return this.tracks[0]?.events ?? [];
  }

  #means(found) {
    const count = this.steps.length || 1,
      whole = this.steps.reduce((sum, { begin, end }) => sum + end - begin, 0) || 1;
    return [...found]
      .map(([name, { us, times }]) => ({ name, us: us / count, share: us / whole, times: times / count }))
      .sort((a, b) => b.us - a.us);
  }
}

/** What events take without those within them, by name; they lie within each other or apart. */
function sums(events, nameOf) {
  const found = new Map(),
    open = [];
  const take = (event, us, times) => {
    const name = nameOf(event),
      sum = found.get(name) ?? { us: 0, times: 0 };
    found.set(name, { us: sum.us + us, times: sum.times + times });
  };
  for (const event of events) {
    while (open.length && open[open.length - 1].end <= event.begin) open.pop();
    if (open.length) take(open[open.length - 1], -Math.min(event.end, open[open.length - 1].end) + event.begin, 0);
    take(event, event.end - event.begin, 1);
    open.push(event);
  }
  return found;
}

/** One thread: its events in rows, of which those of each lie within those of the row above. */
function track(name, events) {
  events.sort((a, b) => a.begin - b.begin || b.end - a.end);
  const rows = [],
    open = [];
  for (const event of events) {
    while (open.length && open[open.length - 1].end <= event.begin) open.pop();
    (rows[open.length] ??= []).push(event);
    open.push(event);
  }
  return { name, events, rows };
}

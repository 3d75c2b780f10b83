// Where the page gets its runs from: a server, or data that stand in the page itself (a report).

class Feed {
  constructor(changed) {
    this.changed = changed;
    this.overview = null;
    this.runs = [];        // { curve: columns, timeline, generation, sizes, ... } by number
    this.chosen = 0;
    this.connected = false;
    this.frozen = document.getElementById("frozen");
    this.busy = false;
    this.sizes = {};
  }

  start() {
    if (this.frozen) this._thaw(JSON.parse(this.frozen.textContent)); else this._connect();
  }

  run(number) {
    return (this.runs[number] ??= { generation: 0, ...this._empty() });
  }
  _empty() { return { timeline: new Timeline(), curve: [[], [], [], [], []], curveBytes: 0, eventBytes: 0 }; }

  choose(number) {
    this.chosen = number;
    this.changed();
    this._pull();
  }

  // Add the lines of a text to a run.
  _addCurve(run, lines) {
    for (const line of lines) line.forEach((value, column) => run.curve[column].push(value));
  }

  // ------------------------------------------------------------------------------------------------------- a server

  _connect() {
    const source = new EventSource("news");
    source.addEventListener("hello", event => {
      const { server } = JSON.parse(event.data);
      if (this.server !== undefined && this.server !== server) this.runs = [];  // another server: begin again
      this.server = server;
      this.sizes = {};
      this.connected = true;
      this.changed();
    });
    source.addEventListener("overview", event => {
      this.overview = JSON.parse(event.data);
      this.changed();
    });
    source.addEventListener("sizes", event => {
      Object.assign(this.sizes, JSON.parse(event.data));
      this._pull();
    });
    source.addEventListener("error", () => {
      this.connected = false;
      this.changed();
      // a server that answered with an error ends the stream for good; one that is away does not
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this._connect(), 1000);
    });
  }

  // Fetch what the server has and this page has not, one text after the other.
  async _pull() {
    if (this.busy || this.frozen) return;
    this.busy = true;
    try {
      while (await this._pullOnce());
    } catch {
      // the server is away: its next hello makes us try again
    } finally {
      this.busy = false;
    }
  }

  async _pullOnce() {
    const server = this.server;
    const numbers = Object.keys(this.sizes).map(Number).sort((a, b) => (b === this.chosen) - (a === this.chosen));
    for (const number of numbers) {
      const [generation, curve, events] = this.sizes[number], run = this.run(number);
      if (run.generation !== generation) Object.assign(run, this._empty(), { generation });
      if (run.curveBytes < curve) {
        const [lines, bytes] = await this._lines(`curve/${number}?from=${run.curveBytes}`);
        if (this.server !== server || run.generation !== generation) return true;
        this._addCurve(run, lines);
        run.curveBytes += bytes;
        this.changed();
        if (bytes) return true;
      }
      if (number === this.chosen && run.eventBytes < events) {
        const [lines, bytes] = await this._lines(`events/${number}?from=${run.eventBytes}`);
        if (this.server !== server || run.generation !== generation) return true;
        run.timeline.add(lines);
        run.eventBytes += bytes;
        this.changed();
        if (bytes) return true;
      }
    }
    return false;
  }

  // Return whole lines, parsed, and how many bytes they were.
  async _lines(address) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const end = bytes.lastIndexOf(10) + 1;
    if (end === 0) return [[], 0];
    const text = new TextDecoder().decode(bytes.subarray(0, end - 1));
    return [JSON.parse(`[${text.replaceAll("\n", ",")}]`), end];
  }

  // ------------------------------------------------------------------------------------------------------- a report

  _thaw({ overview, runs }) {
    this.overview = overview;
    this.connected = true;
    runs.forEach((saved, number) => {
      const run = this.run(number);
      this._addCurve(run, saved.curve);
      run.timeline.add(saved.events);
    });
    this.changed();
  }
}

// Questions to the JSON API. What fails is an Error whose text is a line for a person: the API's own, if it has one.

const PATIENCE_MS = 15_000;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** An answer, or null where what it needs is switched off or not known; tell is given the API's line about it. */
export async function askIfThere(tell, ...question) {
  try {
    return await ask(...question);
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    tell(error.message);
    return null;
  }
}

/** parameters: those that are empty are left out. signal: ends the question when the view is left. */
export async function ask(path, parameters = {}, signal = null) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  const address = `api/v1/${path}${query.size ? `?${query}` : ""}`;
  const patience = AbortSignal.timeout(PATIENCE_MS);
  let answer;
  let said;
  try {
    answer = await fetch(address, {signal: signal ? AbortSignal.any([signal, patience]) : patience});
    said = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, silent(patience));
  }
  const found = parsed(said);
  if (found !== undefined && answer.ok) return found;
  const status = `HTTP ${answer.status} ${answer.statusText}`.trimEnd();
  throw new Refused(answer.status, found?.detail ?? `gpumon does not answer; what does is something else (${status}).`);
}

const silent = (patience) =>
  patience.aborted ? `gpumon has not answered within ${PATIENCE_MS / 1000} s.` : "gpumon does not answer.";

/** Undefined where it is no JSON. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

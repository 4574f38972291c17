// Questions to the JSON API. What goes wrong is an Error whose text is the API's own line for a person.

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
  try {
    answer = await fetch(address, {signal: signal ? AbortSignal.any([signal, patience]) : patience});
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, `gpumon does not answer: ${address} (${error.message})`);
  }
  if (answer.ok) return answer.json();
  const problem = answer.headers.get("content-type")?.includes("json") ? await answer.json() : {};
  throw new Refused(answer.status, problem.detail ?? `${address}: ${answer.status} ${answer.statusText}`);
}

// Questions to the server this page came from.

/** The answer to GET api/NAME with these parameters. Throws an Error that people can read. */
export async function ask(name, params = {}, signal = undefined, isAgain = false) {
  const wanted = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") wanted.set(key, value);
  }
  const query = wanted.toString();
  let response;
  try {
    response = await fetch(`api/${name}${query ? "?" + query : ""}`, { signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!isAgain) {
      // a laptop that changes its network loses every connection once
      await new Promise((done) => setTimeout(done, 300));
      return ask(name, params, signal, true);
    }
    throw new Error("hami-node view does not answer; is it still running?");
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    answer = {};
  }
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

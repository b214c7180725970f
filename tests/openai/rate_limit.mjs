// Calls a mesh that has no place with the official OpenAI client for Node; prints, a line each, the errors without retries, that a
// call with retries was refused, and how that call ended. Usage: rate_limit.mjs BASE_URL
import OpenAI from "openai";

const [baseURL] = process.argv.slice(2);
const impatient = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const prompt = { model: "qwen3", prompt: "The capital", max_tokens: 2 };
const say = (value) => console.log(JSON.stringify(value));

async function refusal(call) {
  try {
    await call();
    return { name: "no error" };
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, retryAfter: error.headers?.get("retry-after") };
  }
}

say({
  refusals: [
    await refusal(() => impatient.chat.completions.create({ model: "qwen3", messages, max_tokens: 2 })),
    await refusal(() => impatient.chat.completions.create({ model: "qwen3", messages, max_tokens: 2, stream: true })),
    await refusal(() => impatient.completions.create(prompt)),
  ],
});

const statuses = [];
const patient = new OpenAI({
  baseURL,
  apiKey: "none",
  maxRetries: 4,
  fetch: async (...request) => {
    const response = await fetch(...request);
    if (response.status === 429 && !statuses.includes(429)) say({ refused: true });
    statuses.push(response.status);
    return response;
  },
});
const answer = await patient.completions.create(prompt);
say({ statuses, text: answer.choices[0].text });

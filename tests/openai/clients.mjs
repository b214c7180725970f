// Calls the mesh with the official OpenAI client for Node and prints what it saw as JSON. Usage: clients.mjs BASE_URL KEY
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

async function errorName(call) {
  try {
    await call();
    return "no error";
  } catch (error) {
    return error.constructor.name;
  }
}

const chat = await client.chat.completions.create({ model, messages, temperature: 0 });
const chunks = await collect(
  await client.chat.completions.create({ model, messages, temperature: 0, stream: true, stream_options: { include_usage: true } }),
);
const prompt = { model, prompt: "The capital of France is", max_tokens: 4, temperature: 0 };
const completion = await client.completions.create(prompt);
const completionChunks = await collect(await client.completions.create({ ...prompt, stream: true }));
const errors = {
  "unknown model": await errorName(() => client.chat.completions.create({ model: "no-such-model", messages })),
  "wrong key": await errorName(() => new OpenAI({ baseURL, apiKey: "sk-wrong", maxRetries: 0 }).models.list()),
  "too long": await errorName(() =>
    client.chat.completions.create({ model, messages: [{ role: "user", content: "word ".repeat(9000) }] })),
};
console.log(JSON.stringify({ chat, chunks, completion, completionChunks, errors }));

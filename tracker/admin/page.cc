#include "tracker/admin/admin_routes.h"

namespace mesh::tracker {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Meshnet</title>
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
textarea,input,select,button{font:inherit;padding:.4rem}textarea{width:100%;box-sizing:border-box}
#answer{white-space:pre-wrap;border-left:3px solid #888;padding-left:1rem;min-height:1.5rem}
.layers{font-family:monospace;word-break:break-all}.error{color:#a00}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}.error{color:#f88}}
</style></head><body>
<h1>Meshnet</h1>
<p>This tracker answers prompts with large language models whose layers run on machines of many owners.
It speaks the OpenAI API under <code>/v1</code>; <a href="/v1/models">models</a>, <a href="/ready">ready</a>.
The machines that run a prompt's layers can read it.</p>
<h2>Layers</h2><div id="coverage">…</div>
<p id="admin" hidden><input id="admin-key" type="password" placeholder="admin key" autocomplete="off"></p>
<h2>Chat</h2>
<form id="form"><p><select id="model" aria-label="model"></select>
<input id="key" type="password" placeholder="API key, if needed" autocomplete="off"></p>
<p><textarea id="prompt" rows="3" aria-label="prompt">What is the capital of France?</textarea></p>
<button id="send">Send</button> <button id="stop" type="button" disabled>Stop</button></form>
<p id="answer" aria-live="polite"></p>
<script>
const at = id => document.getElementById(id);
const headers = (field = "key") => at(field).value ? {Authorization: "Bearer " + at(field).value} : {};
function fail(text) { at("answer").textContent = text; at("answer").className = "error"; }
async function models() {
  const reply = await fetch("/v1/models", {headers: headers()});
  if (!reply.ok) return;
  at("model").replaceChildren(...(await reply.json()).data.map(model => new Option(model.id)));
}
async function coverage() {
  const reply = await fetch("/mesh/v1/coverage", {headers: headers("admin-key")});
  if (reply.status == 401) {
    at("admin").hidden = false;
    at("coverage").textContent = at("admin-key").value ? "this is not the admin key" :
      "from another machine, or by a name, this needs the tracker's admin key (--admin-key)";
    return;
  }
  if (!reply.ok) { at("coverage").textContent = "not known: " + reply.status; return; }
  const state = await reply.json();
  at("coverage").replaceChildren(...state.models.map(model => {
    const line = document.createElement("p");
    const map = document.createElement("span");
    map.className = "layers";
    map.textContent = model.layers.map(layer => layer.ready ? Math.min(layer.ready, 9) : layer.loading ? "~" : ".").join("");
    line.append(model.name + ", copies of each layer: ", map);
    return line;
  }), Object.assign(document.createElement("p"), {textContent: state.nodes.map(node => node.address + " " + node.state + " " +
    node.shards.map(shard => "[" + shard.begin + ", " + shard.end + ") " + shard.state).join(" ")).join("; ")}));
}
let running = null;
at("stop").onclick = () => running && running.abort();
at("form").onsubmit = async event => {
  event.preventDefault();
  running = new AbortController();
  at("answer").textContent = ""; at("answer").className = ""; at("send").disabled = true; at("stop").disabled = false;
  try {
    const reply = await fetch("/v1/chat/completions", {method: "POST", signal: running.signal,
      headers: {"Content-Type": "application/json", ...headers()},
      body: JSON.stringify({model: at("model").value, stream: true, messages: [{role: "user", content: at("prompt").value}]})});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let step; !(step = await reader.read()).done;) {
      const lines = (rest + step.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: {")) continue;
        const data = JSON.parse(line.slice(6));
        if (data.error) throw new Error(data.error.message);
        at("answer").textContent += data.choices[0]?.delta.content ?? "";
      }
    }
  } catch (error) { if (error.name !== "AbortError") fail(error.message); }
  at("send").disabled = false; at("stop").disabled = true;
};
at("key").onchange = models;
at("admin-key").onchange = coverage;
models(); coverage(); setInterval(coverage, 2000);
</script></body></html>
)html";

}  // namespace

net::Route page_route() {
  const auto page = [](net::Request&) {
    net::Response response = net::Response::text(std::string(kPage), "text/html; charset=utf-8");
    response.headers.add(
        "Content-Security-Policy",
        "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "base-uri 'none'; frame-ancestors 'none'");
    response.headers.add("X-Content-Type-Options", "nosniff");
    return response;
  };
  return {"GET", "/", net::Access::kAnyone, page, 0, false};
}

}  // namespace mesh::tracker

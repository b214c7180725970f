#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/net/message.h"
#include "tracker/gateway/backend.h"

namespace mesh::gateway {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Gives the scripted events; then, without an End among them, waits until interrupted.
class FakeAnswer final : public Answer {
 public:
  explicit FakeAnswer(std::vector<Event> events) : events_(events.begin(), events.end()) {}

  std::optional<Event> next(TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return interrupted_ || !events_.empty(); });
    if (interrupted_ || events_.empty()) return std::nullopt;
    std::optional<Event> event(std::move(events_.front()));
    events_.pop_front();
    return event;
  }
  void interrupt() override {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
    }
    changed_.notify_all();
  }
  void close() override {
    interrupt();
    closed_ = true;
  }
  bool closed() const { return closed_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool interrupted_ = false;
  std::atomic<bool> closed_ = false;
};

/// One model, "test-model" (context 64), with the tokenizer of a golden checkpoint and a plain chat template.
class FakeBackend final : public Backend {
 public:
  FakeBackend() {
    const std::string folder = std::string(MESH_SOURCE_DIR) + "/tests/golden/checkpoints/qwen3/";
    Model model;
    model.name = "test-model";
    model.created_unix = 1'700'000'000;
    auto tokenizer = Tokenizer::load(read_file(folder + "tokenizer.json"));
    if (tokenizer.ok()) model.tokenizer = *tokenizer;
    auto chat = ChatTemplate::load(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if messages[0].content == 'refuse' %}{{ raise_exception('no') }}{% endif %}",
        "{}");
    if (chat.ok()) model.chat_template = *chat;
    model.defaults.eos_ids = {0};
    model.context = 64;
    model.vocab = 2048;
    models_.push_back(std::move(model));
  }

  const std::vector<Model>& models() const override { return models_; }
  StatusOr<std::shared_ptr<Answer>> ask(Ask ask) override {
    asked.push_back(ask);
    if (!refusal.ok()) return refusal;
    answer = std::make_shared<FakeAnswer>(script);
    return std::shared_ptr<Answer>(answer);
  }

  Model& model() { return models_.front(); }
  /// Events that spell `text`, token by token.
  std::vector<Event> spell(std::string_view text) const {
    std::vector<Event> events;
    const auto ids = models_.front().tokenizer->encode(text, AddSpecial::kNo);
    if (ids.ok()) {
      for (const TokenId id : *ids) events.emplace_back(Token{id, false});
    }
    return events;
  }

  std::vector<Event> script;
  Status refusal;
  std::vector<Ask> asked;
  std::shared_ptr<FakeAnswer> answer;

 private:
  std::vector<Model> models_;
};

class FakeWatch final : public net::ClientWatch {
 public:
  ~FakeWatch() override {
    if (leaver_.joinable()) leaver_.join();
  }
  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> action) override {
    if (!leave_when_watched) {
      action_ = std::move(action);
      return;
    }
    leaver_ = std::thread([this, action = std::move(action)] {
      gone_ = true;
      action();
    });
  }
  /// From the thread that calls on_gone().
  void leave() {
    gone_ = true;
    if (action_) action_();
  }

  /// The client leaves, in another thread, as soon as somebody waits for it.
  bool leave_when_watched = false;

 private:
  std::atomic<bool> gone_ = false;
  std::function<void()> action_;
  std::thread leaver_;
};

class FakeWriter final : public net::StreamWriter {
 public:
  explicit FakeWriter(std::shared_ptr<FakeWatch> watch) : watch_(std::move(watch)) {}
  bool write(std::string_view bytes) override {
    if (watch_->gone()) return false;
    text += bytes;
    if (after_write) after_write(text);
    return true;
  }
  bool client_gone() const override { return watch_->gone(); }

  std::string text;
  std::function<void(const std::string&)> after_write;

 private:
  std::shared_ptr<FakeWatch> watch_;
};

}  // namespace mesh::gateway

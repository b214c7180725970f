#pragma once

#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

namespace mesh::net {

/// Answers each connection over TLS with given bytes, under a certificate of its own making. For tests.
class TestTlsListener {
 public:
  /// `subject`: the certificate's subjectAltName, e.g. "IP:127.0.0.1". Its PEM goes to `certificate_file`.
  TestTlsListener(const std::string& subject, std::string answer, const std::string& certificate_file)
      : answer_(std::move(answer)),
        context_(SSL_CTX_new(TLS_server_method())),
        socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
    X509* certificate = X509_new();
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, subject.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(certificate, key, nullptr);
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    if (FILE* file = std::fopen(certificate_file.c_str(), "w")) {
      PEM_write_X509(file, certificate);
      std::fclose(file);
    }
    X509_free(certificate);
    EVP_PKEY_free(key);

    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(socket_, 16);
    socklen_t length = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~TestTlsListener() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
    SSL_CTX_free(context_);
  }
  std::string url() const { return "https://127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() {
    while (true) {
      const int peer = ::accept(socket_, nullptr, nullptr);
      if (peer < 0) return;
      SSL* session = SSL_new(context_);
      SSL_set_fd(session, peer);
      if (SSL_accept(session) == 1) {
        char buffer[4096];
        SSL_read(session, buffer, sizeof buffer);
        SSL_write(session, answer_.data(), static_cast<int>(answer_.size()));
        SSL_shutdown(session);
      }
      SSL_free(session);
      ::close(peer);
    }
  }

  const std::string answer_;
  SSL_CTX* const context_;
  const int socket_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace mesh::net

#include "node/start.h"

int main(int argc, char** argv) {
  return mesh::start_node(argc, argv, nullptr);
}

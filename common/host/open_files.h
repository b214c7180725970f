#pragma once

namespace mesh {

/// Lets the process have as many files and sockets open as it may: the soft limit, usually 1,024, becomes the
/// hard one. Without effect where that is refused.
void raise_open_files();

}  // namespace mesh

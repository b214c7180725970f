#include "common/text/tokenizer.h"

#include <gtest/gtest.h>

TEST(X, Y) {}

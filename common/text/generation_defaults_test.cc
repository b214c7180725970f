#include "common/text/tokenizer.h"

#include <gtest/gtest.h>

TEST(X, generation_defaults) {}

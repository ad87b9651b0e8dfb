#include "engine/config/config.h"

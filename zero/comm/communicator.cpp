#include "zero/communicator.h"

// Bootstrap: how ranks that know nothing about each other become a group, over a store that may be
// full of keys from earlier runs. It knows neither the transport nor the contents of a card.
//
// Every rank draws a nonce, and a value that is read counts only if it refers to a current nonce:
//
//   rank r   slot = add(arrivals, 1); set(arrival/slot, rank, nonce r)
//   rank 0   reads the slots as they fill; set(ping/<nonce r>, nonce 0)
//   rank r   set(alive/<nonce 0>/<nonce r>, its card)
//   rank 0   when all ranks have answered: set(first, the next slot), set(table/<nonce 0>, all)
//   rank r   looks for itself in the table; removes its keys, and the last rank the table
//
// Dead arrivals do not answer, slots that stay empty are skipped, and a rank that waits for a table
// notices when a different rank 0 asks. A living rank's objection to the meeting (another size,
// another version, too many groups) goes into the table, so that all ranks raise the same error.
//
// In a job with a secret, answers and tables are sealed under their keys, which contain the nonces
// of both sides: a value that can be opened was written in this meeting by a rank that knows the
// secret. The name of a rank's process stays readable, and so does a table that only says why the
// meeting failed, so that ranks with different secrets all raise the error that names both.
#pragma once

#include <string>
#include <vector>

#include "gtopk/directory.hpp"
#include "gtopk/key_value_store.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/job_key.hpp"

namespace gtopk::meeting {

using Roll = std::vector<std::string>;  ///< cards, by rank

/// Blocks until every rank is present. Throws the same Error on all ranks present: kBootstrap, or a
/// rank's refusal; after `at_most`, an error that names the missing ranks. `key` is null if the job
/// has no secret.
[[nodiscard]] Roll meet(KeyValueStore& store, const Presence& self, transport::Duration at_most,
                        const transport::JobKey* key = nullptr);

}  // namespace gtopk::meeting

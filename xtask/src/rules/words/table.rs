//! The words that names do not use, and the names that may.

/// A word, or several with `_` between, and what to say instead. A plural in `s` counts as well.
pub(super) struct Word {
    pub word: &'static str,
    pub scope: Scope,
    pub instead: &'static str,
}

/// Which names a word is checked in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// It has no other meaning in this field.
    Everywhere,
    /// It is an ordinary word in a variable, a field or a function, such as a `line` of text; as the name of a type or
    /// a module it says too little.
    TypesAndModules,
}

/// A name that stays.
pub(super) struct Allowed {
    pub name: &'static str,
    /// How the paths of its files begin.
    pub below: &'static str,
    pub reason: &'static str,
}

/// Every word, by the idea that it was used for. A comment says what a word of types and modules may mean elsewhere.
pub(super) const WORDS: &[Word] = &[
    // What a caller sends, and what it is answered.
    everywhere("views", "attributes, descriptors"),
    everywhere("told", "attributes, outcome, reported"),
    everywhere("said", "outcome, given"),
    everywhere("heard", "outcome, received"),
    everywhere("price", "cost"),
    in_types("question", "charge, request"), // a question to a person
    // Protocols, policies and changes to them.
    everywhere("wire", "protocol, connection"),
    everywhere("in_force", "active policy"),
    in_types("live", "active"), // a value that is not yet dropped
    everywhere("ruling", "override"),
    in_types("order", "override, operator state"), // the order of a list
    in_types("bench", "block"),                    // the command
    in_types("beside", "candidate policy, comparison"), // an ordinary word
    // Decisions without the store.
    everywhere("stand_in", "fallback"),
    everywhere("standby", "fallback"),
    everywhere("without_store", "fallback"),
    everywhere("stance", "fallback"),
    everywhere("debt", "deferred charge"),
    in_types("replay", "reconcile"), // of an attack
    // Paths.
    everywhere("short_way", "fast path"),
    everywhere("whole_way", "slow path"),
    everywhere("at_once", "fast path, immediate"),
    in_types("way", "path, route, mode"), // an ordinary word
    // Permits, queues and limits on resources.
    in_types("place", "permit, slot, position"), // an ordinary word
    in_types("line", "queue"),                   // of text
    in_types("row", "queue, slot"),              // of a table
    in_types("spot", "slot"),                    // an ordinary word
    in_types("turn", "slot, single-flight"),     // to turn something
    in_types("room", "budget, capacity"),        // space in a buffer
    everywhere("house", "connection limit, budget"),
    everywhere("door", "connection limit, listener"),
    everywhere("crowd", "connection limit, clients"),
    everywhere("seat", "slot, connection"),
    // Maps, caches and leases.
    everywhere("desk", "thread cache"),
    in_types("book", "sharded map"), // to book a cost
    everywhere("shelf", "shard, sharded map"),
    everywhere("shelves", "shards, sharded map"),
    everywhere("hall", "sharded map"),
    everywhere("heat", "hot-key sketch"),
    in_types("draw", "acquire, renewal"), // to draw a picture or a random number
    in_types("lend", "acquire, lease"),   // what a store does that leases
    everywhere("hand_over", "return"),
    everywhere("strand", "expire"),
    everywhere("tend", "maintain, sweep"),
    in_types("keep", "maintain"), // to keep a value
    // Layers of the Redis client.
    in_types("link", "client, connection"), // in a document
    everywhere("hub", "client"),
    everywhere("maker", "connection factory"),
    everywhere("keeper", "supervisor, maintenance"),
    everywhere("parcel", "batch"),
    in_types("round", "flush"), // in arithmetic
    everywhere("luck", "reply class, random"),
    // Configuration, logs, timeouts, metrics.
    everywhere("foreign", "compat"),
    everywhere("seldom", "log throttle"),
    everywhere("patience", "timeout, deadline"),
    everywhere("spread", "rendezvous, jitter"),
    everywhere("spare", "buffer pool, idle"),
    in_types("numbers", "metrics, counts"), // an ordinary word
    everywhere("unless_said", "default"),
    in_types("authority", "CA"), // of a URI
    // Words that say too little of a type.
    in_types("behind", "queued, upstream"),      // an ordinary word
    in_types("passing", "in flight"),            // to pass a value
    in_types("carried", "inherited, forwarded"), // in arithmetic
    everywhere("wish", "demand, request"),
    everywhere("wishes", "demands, requests"),
    in_types("turned", "rejected, rotated"),     // to turn something
    in_types("handed", "returned, transferred"), // an ordinary word
    everywhere("sole", "single"),
    in_types("brief", "summary"),                // an ordinary word
    in_types("known", "registered, identified"), // a value that is not unknown
    in_types("again", "retry"),                  // an ordinary word
    everywhere("looked", "lookup, inspected"),
    in_types("late", "expired, overdue"), // after a deadline
    everywhere("manners", "behaviour, options"),
    everywhere("board", "status"),
    in_types("see", "show, status"),            // an ordinary word
    in_types("sample", "example, measurement"), // of a distribution
    // Actors without a name.
    everywhere("whoever", "client, caller, operator"),
    everywhere("nobody", "no client, no caller"),
    everywhere("somebody", "client, caller, operator"),
    // Words that say nothing.
    everywhere("manager", "the thing itself"),
    everywhere("helper", "the thing itself"),
    everywhere("util", "the thing itself"),
    everywhere("info", "the thing itself"),
    everywhere("data", "the thing itself"),
];

/// Names that users script against, or that another specification gives.
pub(super) const ALLOWED: &[Allowed] = &[
    allowed("wire", "crates/tollgate-server/src/cli/bench.rs", "the flag --wire of `tollgate bench`"),
    allowed(
        "wire",
        "crates/tollgate-server/src/control/admin/traffic_view.rs",
        "a JSON field of the admin API",
    ),
    allowed("WIRE", "crates/tollgate-server/src/telemetry/names.rs", "a label of metrics"),
    allowed("ruling", "crates/tollgate-server/src/control/admin/view.rs", "a JSON field of the admin API"),
    allowed(
        "ruling",
        "crates/tollgate-server/src/operator_state/file.rs",
        "a field of the file of operator state",
    ),
    allowed("foreign", "crates/tollgate-server/src/control/admin/view.rs", "a JSON field of the admin API"),
    allowed("stance", "crates/tollgate-server/src/control/admin/view.rs", "a JSON field of the admin API"),
    allowed("looked_at", "crates/tollgate-server/src/bench.rs", "a JSON field of `tollgate bench --json`"),
    allowed("BenchArguments", "crates/tollgate-server/src/cli/bench.rs", "the command `tollgate bench`"),
    allowed("bench", "crates/tollgate-server/src/lib.rs", "the command `tollgate bench`"),
    allowed("bench", "crates/tollgate-server/src/cli.rs", "the command `tollgate bench`"),
    allowed("ReplayArguments", "crates/tollgate-server/src/cli/replay.rs", "the command `tollgate replay`"),
    allowed("replay", "crates/tollgate-server/src/lib.rs", "the command `tollgate replay`"),
    allowed("replay", "crates/tollgate-server/src/cli.rs", "the command `tollgate replay`"),
    allowed("replay", "crates/tollgate-sim/src/lib.rs", "what `tollgate replay` runs"),
    allowed("Replay", "crates/tollgate-sim/src/replay.rs", "what `tollgate replay` runs"),
    allowed("Data", "crates/tollgate-load/src/grpc", "the DATA frame of HTTP/2"),
    allowed("data", "crates/tollgate-load/src/grpc", "the DATA frame of HTTP/2"),
    allowed("Info", "crates/tollgate-server/src/resp", "the command INFO of Redis"),
    allowed("info", "crates/tollgate-server/src/resp", "the command INFO of Redis"),
    allowed("RetryInfo", "crates/tollgate-tower/src/grpc.rs", "the message google.rpc.RetryInfo"),
    allowed("Sample", "crates/tollgate-server/src/telemetry.rs", "a sample of a metric, as Prometheus says"),
    allowed("Line", "crates/tollgate/src/memory/region.rs", "a cache line"),
    allowed("Lines", "crates/tollgate-server/src/operate/tail.rs", "lines of text"),
    allowed("line", "crates/tollgate-server/src/log.rs", "a line of the log"),
];

const fn everywhere(word: &'static str, instead: &'static str) -> Word {
    Word { word, scope: Scope::Everywhere, instead }
}

const fn in_types(word: &'static str, instead: &'static str) -> Word {
    Word { word, scope: Scope::TypesAndModules, instead }
}

const fn allowed(name: &'static str, below: &'static str, reason: &'static str) -> Allowed {
    Allowed { name, below, reason }
}

//! `CL.THROTTLE`, which answers as redis-cell does, and `THROTTLE`, which answers as throttlecrab does.

use tollgate::Timestamp;
use tollgate::store::Store;

use super::Resp;
use super::frame::Arguments;
use super::reply::{Reply, quoted};
use super::session::{number, wrong_number};
use crate::service::throttle;
use crate::service::throttle_counters::ThrottleCommand;
use crate::service::throttle_limit::{Limit, seconds_down, seconds_up};

const USAGE: &str =
    "Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
const ZERO_RATE: &str = "Cell error: Zero rates are not supported";

/// `CL.THROTTLE key max_burst count period [quantity]`.
pub(super) fn answer_cell<S: Store>(
    resp: &Resp<S>,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let (5 | 6, Some(key)) = (arguments.len(), arguments.get(1)) else {
        return reply.error(USAGE);
    };
    let mut numbers = [0, 0, 0, 1];
    for (number_read, text) in numbers.iter_mut().zip(arguments.from(2)) {
        match number(text) {
            Some(read) => *number_read = read,
            None => return reply.error(&format!("Cell error: Couldn't parse as integer: {}", quoted(text))),
        }
    }
    let [max_burst, count, period, quantity] = numbers;
    let Some(limit) = Limit::beyond_one(max_burst, count, period) else {
        return reply.error(ZERO_RATE);
    };
    let charged = throttle::charge(&resp.service, ThrottleCommand::ClThrottle, key, &limit, quantity, now);
    reply.array(5);
    reply.integer(i64::from(charged.limited));
    reply.integer(charged.most);
    reply.integer(charged.remaining);
    reply.integer(charged.retry_after.map_or(-1, seconds_up));
    reply.integer(seconds_up(charged.reset_after));
}

/// `THROTTLE key max_burst count period [quantity]`.
pub(super) fn answer_crab<S: Store>(
    resp: &Resp<S>,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let (5 | 6, Some(key)) = (arguments.len(), arguments.get(1)) else {
        return reply.error(&wrong_number("throttle"));
    };
    let names = ["max_burst", "count_per_period", "period", "quantity"];
    let mut numbers = [0, 0, 0, 1];
    for ((number_read, name), text) in numbers.iter_mut().zip(names).zip(arguments.from(2)) {
        match number(text) {
            Some(read) => *number_read = read,
            None => return reply.error(&format!("ERR invalid {name}: accepted: whole numbers")),
        }
    }
    let [max_burst, count, period, quantity] = numbers;
    if quantity < 0 {
        return reply.error("ERR invalid quantity: accepted: 0 (only look) and more");
    }
    if max_burst <= 0 || count <= 0 || period <= 0 {
        return reply.error("ERR invalid limit: max_burst, count_per_period and period must be 1 or more");
    }
    let Some(limit) = Limit::in_all(max_burst, count, period) else {
        return reply.error("ERR invalid limit: more than one unit in a nanosecond");
    };
    let charged = throttle::charge(&resp.service, ThrottleCommand::Throttle, key, &limit, quantity, now);
    let never = if charged.limited { -1 } else { 0 };
    reply.array(5);
    reply.integer(i64::from(!charged.limited));
    reply.integer(charged.most);
    reply.integer(charged.remaining);
    reply.integer(seconds_down(charged.reset_after));
    reply.integer(charged.retry_after.map_or(never, seconds_down));
}

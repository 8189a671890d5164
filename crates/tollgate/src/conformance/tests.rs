//! The memory store keeps every promise of the suite.

use crate::memory::MemoryStore;
use crate::time::Timestamp;

/// Runs one promise on memory, which never waits.
fn on_memory(promise: impl AsyncFnOnce(&fn(Timestamp) -> MemoryStore)) {
    let make: fn(Timestamp) -> MemoryStore = |origin| MemoryStore::new(1 << 20, origin);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut future = std::pin::pin!(promise(&make));
    assert!(future.as_mut().poll(&mut context).is_ready(), "memory never waits");
}

/// One test for each promise, so that a failure names it.
macro_rules! promises {
    ($($module:ident: $($promise:ident),+;)+) => {
        $(mod $module {
            $(#[test]
            fn $promise() {
                crate::conformance::tests::on_memory(async |make| crate::conformance::$module::$promise(make).await);
            })+
        })+
    };
}

promises! {
    all_or_nothing:
        an_admission_charges_every_counter,
        a_denial_leaves_every_other_counter,
        a_cost_that_never_fits_leaves_every_counter,
        a_denial_among_the_most_limits_leaves_the_others,
        looking_changes_nothing;
    modes:
        shadow_never_denies,
        shadow_never_touches_an_enforced_counter,
        shadow_is_not_counted_when_the_request_is_denied,
        shadow_is_not_in_the_answer,
        a_share_of_the_keys_is_enforced_and_stays_so,
        off_is_not_asked;
    swapping:
        a_raise_acts_immediately_and_gifts_nothing,
        a_raised_bucket_refills_at_the_new_rate,
        lowering_clamps_and_is_not_forgotten,
        lowering_below_what_was_used_denies,
        swapping_to_and_fro_never_admits_more,
        slowing_gifts_nothing_to_those_who_stay_quiet,
        an_idle_counter_is_not_lost_between_swaps,
        another_period_gifts_nothing,
        a_key_may_change_its_tier,
        an_override_acts_on_one_key,
        other_numbers_keep_counters_and_other_names_do_not;
    settling:
        a_commit_below_the_estimate_gives_the_rest_back,
        a_commit_above_the_estimate_charges_what_there_is,
        a_commit_above_the_estimate_counts_by_the_keys_own_tier,
        a_cancelled_reservation_never_was,
        a_window_that_has_ended_is_not_given_back_to,
        a_reservation_that_expires_stays_charged,
        a_denied_reservation_holds_nothing,
        only_limits_that_count_the_cost_are_settled,
        a_reservation_survives_a_swap,
        waiters_keep_their_departures,
        a_permit_is_released_once,
        a_permit_comes_back_by_itself,
        a_renewed_permit_lives_on,
        a_permit_survives_a_swap,
        a_refund_gives_back_exactly,
        a_reset_forgets_all_or_the_named;
    kept:
        a_late_cancel_gives_back_its_own_units,
        a_late_commit_gives_back_its_own_units,
        a_bucket_gives_back_what_it_has_not_regained,
        a_refund_that_may_be_too_old_is_dropped,
        a_refund_of_an_age_takes_it_to_be_that_old,
        no_interval_keeps_more_than_its_bound,
        an_immediate_cancel_restores_the_capacity;
}

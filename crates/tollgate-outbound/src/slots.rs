//! Slots of leaky buckets that calls have reserved and left. A slot cannot be given back where other processes have
//! reserved behind it, so the next call of this process takes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tollgate::{Decision, Reservation, Timestamp};

use crate::costs::Costs;
use crate::keys::BucketKey;

/// The counters that charge a call, and what each charges. Calls that are equal in it can take each other's slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChargedTo {
    pub(crate) counters: Vec<BucketKey>,
    pub(crate) costs: Arc<Costs>,
}

/// The charge of a call.
pub(crate) struct Charged {
    pub(crate) decision: Decision,
    pub(crate) reservation: Reservation,
}

/// When a slot comes, and its number: several may come at one instant.
pub(crate) type SlotId = (Timestamp, u64);

/// Slots that have not come yet, and that no call holds.
#[derive(Default)]
pub(crate) struct FreeSlots {
    slots: HashMap<Arc<ChargedTo>, BTreeMap<SlotId, Charged>>,
    offered: u64,
}

impl FreeSlots {
    pub(crate) fn offer(&mut self, to: &Arc<ChargedTo>, leaves_at: Timestamp, charged: Charged) -> SlotId {
        self.offered += 1;
        let id = (leaves_at, self.offered);
        self.slots.entry(Arc::clone(to)).or_default().insert(id, charged);
        id
    }

    /// Takes the first slot, if it comes by this instant.
    pub(crate) fn take_first(&mut self, to: &ChargedTo, until: Timestamp) -> Option<(SlotId, Charged)> {
        let (&id, _) = self.slots.get(to)?.first_key_value().filter(|((at, _), _)| *at <= until)?;
        Some((id, self.take(to, id)?))
    }

    pub(crate) fn take(&mut self, to: &ChargedTo, id: SlotId) -> Option<Charged> {
        let slots = self.slots.get_mut(to)?;
        let charged = slots.remove(&id);
        if slots.is_empty() {
            self.slots.remove(to);
        }
        charged
    }
}

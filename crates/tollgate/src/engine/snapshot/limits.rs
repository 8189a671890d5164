//! Limits as bytes and back, as far as their counters depend on them: what they count by, and every quota that a
//! counter may have been counted under. Conditions, costs and modes come from the next policy.

use std::io::{self, Write};

use super::fields::{FrameFields, Unread};
use super::frame::{Block, Frames};
use super::{GENERATION_MAX, quota};
use crate::active::{ActivePolicy, Records, Remembered};
use crate::memory::NUMBERS_MAX;
use crate::policy::limit::{DefaultQuota, Quotas};
use crate::policy::{BY_MAX, By, LIMITS_MAX, Limit, QUOTAS_MAX, QuotaIndex, TIER_BY_MAX};
use crate::store::{PolicyInstant, Record};

/// Separates the attributes that name a tier together.
const SEPARATOR: &str = "\u{1f}";

/// Writes what is remembered of every limit, those that are gone included.
pub(super) fn write<W: Write>(frames: &mut Frames<'_, W>, active: &ActivePolicy) -> io::Result<()> {
    for (limit, numbers, records) in active.limits() {
        frames.write(Block::Limit, |fields| write_limit(fields, limit, numbers, records))?;
    }
    for (identity, records) in active.gone() {
        frames.write(Block::Gone, |fields| {
            fields.list(identity, |fields, part| fields.text(part));
            write_records(fields, records);
        })?;
    }
    Ok(())
}

fn write_limit(fields: &mut FrameFields, limit: &Limit, numbers: &[u32], records: &[Option<Record>]) {
    let quotas = &limit.quotas;
    let (DefaultQuota::Given(default) | DefaultQuota::Strictest(default)) = quotas.default;
    fields.text(limit.name());
    fields.list(limit.by(), |fields, by| fields.text(&by.identity()));
    let tier_by = limit.tier_by().join(SEPARATOR);
    fields.option(Some(&*tier_by).filter(|tier_by| !tier_by.is_empty()), FrameFields::text);
    write_records(fields, records);
    fields.list(numbers, |fields, &number| fields.u32(number));
    fields.u32(default.0);
    for names in [&quotas.tiers, &quotas.overrides] {
        fields.list(names, |fields, (name, index)| {
            fields.text(name);
            fields.u32(index.0);
        });
    }
}

pub(super) fn read_limit(fields: &mut Unread<'_>, into: &mut Remembered) -> Result<(), String> {
    let name = fields.text()?.to_owned();
    let by: Vec<By> = texts(fields)?.iter().map(|identity| By::of_identity(identity)).collect();
    let tier_by = fields.option(|fields| {
        fields.text().map(|text| text.split(SEPARATOR).take(TIER_BY_MAX).map(str::to_owned).collect())
    })?;
    let tier_by: Vec<String> = tier_by.unwrap_or_default();
    let records = read_records(fields)?;
    let (mut all, mut numbers) = (Vec::new(), Vec::new());
    for _ in 0..fields.length()? {
        let number = fields.number()?;
        let record = records.get(number as usize).and_then(Option::as_ref);
        let record = record.filter(|record| record.retired.is_none());
        all.push(record.ok_or("an active quota is not known")?.quota.clone());
        numbers.push(number);
    }
    let index = |fields: &mut Unread<'_>| match fields.u32()? {
        index if (index as usize) < all.len() || !QuotaIndex(index).is_counted() => Ok(QuotaIndex(index)),
        index => Err(format!("there is no quota {index}")),
    };
    let default = DefaultQuota::Given(index(fields)?);
    let mut quotas = Quotas { default, tier_by, ..Quotas::none() };
    for names in [&mut quotas.tiers, &mut quotas.overrides] {
        for _ in 0..fields.length()? {
            let (name, index) = (fields.text()?, index(fields)?);
            names.insert(name.into(), index);
        }
    }
    let kinds_differ = all.windows(2).any(|two| two[0].algorithm() != two[1].algorithm());
    if kinds_differ || all.len() > QUOTAS_MAX || by.len() > BY_MAX || into.limits.len() >= LIMITS_MAX {
        return Err("a limit is what no limit can be".to_owned());
    }
    quotas.all = all;
    into.limits.push((Limit::for_counters(name, by, quotas), numbers, records));
    Ok(())
}

pub(super) fn read_gone(fields: &mut Unread<'_>, into: &mut Remembered) -> Result<(), String> {
    let identity = texts(fields)?;
    let records = read_records(fields)?;
    into.gone.insert(identity, records);
    Ok(())
}

fn texts(fields: &mut Unread<'_>) -> Result<Vec<String>, String> {
    let length = fields.length()?;
    (0..length).map(|_| fields.text().map(str::to_owned)).collect()
}

/// The quotas of a limit, one for each number up to the last; a number may be free.
fn write_records(fields: &mut FrameFields, records: &[Option<Record>]) {
    fields.list(records, |fields, record| {
        fields.option(record.as_ref(), |fields, record| {
            quota::write(fields, &record.quota);
            write_policy_instant(fields, record.since);
            fields.option(record.retired, write_policy_instant);
            fields.option(record.before, FrameFields::u32);
            fields.instant(record.matters_until);
        });
    });
}

fn read_records(fields: &mut Unread<'_>) -> Result<Records, String> {
    let length = fields.length()?;
    if length > NUMBERS_MAX {
        return Err(format!("a limit has {length} quota numbers"));
    }
    let record = |fields: &mut Unread<'_>| {
        Ok(Record {
            quota: quota::read(fields)?,
            since: read_policy_instant(fields)?,
            retired: fields.option(read_policy_instant)?,
            before: fields.option(Unread::number)?,
            matters_until: fields.instant()?,
        })
    };
    (0..length).map(|_| fields.option(record)).collect()
}

fn write_policy_instant(fields: &mut FrameFields, policy_instant: PolicyInstant) {
    fields.u64(policy_instant.policy);
    fields.instant(policy_instant.at);
}

fn read_policy_instant(fields: &mut Unread<'_>) -> Result<PolicyInstant, String> {
    Ok(PolicyInstant { policy: fields.u64_to(GENERATION_MAX)?, at: fields.instant()? })
}

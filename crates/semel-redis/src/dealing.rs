//! Claims over several partitions, in the order of the whole store.
//!
//! Each partition says which jobs it would grant; the first of all of them are then taken where they are. All
//! partitions are asked every time, because a job that another server just added may be in any of them. Each
//! is asked for its share, and for more if that turns out too little. A partition that is away shows nothing;
//! waiting workers are woken when it is back.

use futures_util::future::join_all;
use semel_core::draft::Map;
use semel_core::ident::JobId;
use semel_core::lease::Unclaimable;
use semel_core::partition;
use semel_store::backend::{Batch, Claim, Claimed};
use semel_store::bounds::{CLAIM_LOOKS_EXTRA, LANE_LOOKS};

use crate::commit::together;
use crate::error::RedisError;
use crate::head::Reader;
use crate::partitions::Partitions;
use crate::scripts::Script;
use crate::values::{Values, bytes};

/// Each partition is asked for at least this many jobs, if this many are wanted. What it shows beyond its
/// share is read in vain.
const FEW: u32 = 16;
/// A partition is first asked for its share times `MORE`; if too little, for that times `MUCH_MORE`.
const MORE: u32 = 2;
const MUCH_MORE: u32 = 8;
/// The value of a candidate's reason byte when it would be granted.
pub(crate) const GRANTED: u8 = 255;

/// A job that a partition would look at for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The index of its queue among the claim's queues.
    queue: u16,
    /// Priority, time and id, encoded so that byte order is claim order.
    place: [u8; 25],
    partition: u16,
    /// The [code](Unclaimable::code) of the reason why it is not granted, or [`GRANTED`].
    why: u8,
    /// The limit that the job is under, if any.
    lane: [u8; 8],
}

impl Candidate {
    /// Whether it counts towards the jobs asked for: it is granted, or only its limit prevents that.
    const fn is_counted(&self) -> bool {
        self.why == GRANTED || self.is_limited()
    }

    /// Whether only its limit prevents the grant.
    const fn is_limited(&self) -> bool {
        self.why == Unclaimable::Limited.code()
    }
}

fn candidates(partition: u16, said: &[u8]) -> Result<Vec<Candidate>, RedisError> {
    let (all, []) = said.as_chunks::<36>() else { return Err(RedisError::Answer("candidates")) };
    let candidate = |bytes: &[u8; 36]| {
        let mut reader = Reader(bytes);
        let (queue, [why], place) = (u16::from_be_bytes(reader.take()?), reader.take()?, reader.take()?);
        Some(Candidate { queue, place, partition, why, lane: reader.take()? })
    };
    all.iter().map(|bytes| candidate(bytes).ok_or(RedisError::Answer("candidates"))).collect()
}

/// What one partition has shown.
struct Shown {
    partition: u16,
    candidates: Vec<Candidate>,
    /// How many jobs it was asked for.
    asked: u32,
}

impl Shown {
    /// Whether it may have more candidates than it has shown: it filled what it was asked for, or reached its
    /// bound of looks.
    fn is_cut(&self) -> bool {
        let counted = self.candidates.iter().filter(|candidate| candidate.is_counted()).count();
        let looks = self.asked as usize + usize::from(CLAIM_LOOKS_EXTRA);
        counted >= self.asked as usize || self.candidates.len() >= looks
    }
}

/// The partitions (by index) that must show more before `wanted` jobs can be dealt: a candidate they have not
/// shown may come before the last of those.
fn short(shown: &[Shown], wanted: u32) -> Vec<usize> {
    let mut counted: Vec<Candidate> =
        shown.iter().flat_map(|shown| shown.candidates.iter().copied()).collect();
    counted.retain(Candidate::is_counted);
    counted.sort_unstable();
    let last = counted.get((wanted as usize).saturating_sub(1));
    let is_short = |shown: &Shown| {
        let is_passed = last.is_none_or(|last| shown.candidates.last().is_none_or(|own| own < last));
        shown.asked < wanted && shown.is_cut() && is_passed
    };
    shown.iter().enumerate().filter(|(_, shown)| is_short(shown)).map(|(at, _)| at).collect()
}

/// What each claim gets: how many jobs from each partition, and what it is told about jobs not granted.
#[derive(Default)]
struct Hand {
    from: Map<u16, u32>,
    unclaimable: Vec<(JobId, Unclaimable)>,
}

/// Deals the candidates in order, exactly as the reference model does (`Model::claim` of `semel-store`): up
/// to the limits, looking a bounded number of jobs further in each queue. If nothing is granted, the last
/// hand is also told of the limited jobs that come next.
fn deal(mut all: Vec<Candidate>, limits: &[u32]) -> Result<Vec<Hand>, RedisError> {
    all.sort_unstable();
    let mut hands: Vec<Hand> = limits.iter().map(|_| Hand::default()).collect();
    let (mut taker, mut taken) = (0, 0);
    let mut left: usize = limits.iter().map(|limit| *limit as usize).sum();
    let mut is_granted = false;
    for queue in all.chunk_by(|one, other| one.queue == other.queue) {
        if left == 0 {
            break;
        }
        let looks = left + usize::from(CLAIM_LOOKS_EXTRA);
        // Each partition has shown as many jobs of a limit as are looked at in total.
        let per_lane = left.min(usize::from(LANE_LOOKS));
        let mut of_lanes: Map<[u8; 8], usize> = Map::default();
        let mut is_looked_at = |candidate: &&Candidate| {
            if !candidate.is_limited() {
                return true;
            }
            let shown = of_lanes.entry(candidate.lane).or_default();
            *shown += 1;
            *shown <= per_lane
        };
        for candidate in queue.iter().filter(|candidate| is_looked_at(candidate)).take(looks) {
            while limits.get(taker).is_some_and(|limit| taken >= *limit) {
                (taker, taken) = (taker + 1, 0);
            }
            let is_full = left == 0;
            if is_full && (is_granted || !candidate.is_limited()) {
                break;
            }
            let hand = if is_full { hands.last_mut() } else { hands.get_mut(taker) };
            let Some(hand) = hand else { return Ok(hands) };
            let id = candidate.place.last_chunk::<16>().map(|id| JobId::from_bytes(*id));
            let id = id.ok_or(RedisError::Answer("candidates"))?;
            if candidate.is_counted() && !is_full {
                is_granted |= !candidate.is_limited();
                *hand.from.entry(candidate.partition).or_default() += 1;
                (taken, left) = (taken + 1, left.saturating_sub(1));
            }
            hand.unclaimable.extend(Unclaimable::from_code(candidate.why).map(|why| (id, why)));
        }
    }
    Ok(hands)
}

impl Partitions {
    /// Serves claims, in their order.
    pub async fn claim(&self, claims: &[Claim]) -> Result<Vec<Claimed>, RedisError> {
        let mut all = Vec::with_capacity(claims.len());
        let alike = claims.chunk_by(Claim::differs_in_taker_alone);
        for alike in alike.flat_map(|alike| alike.chunk_by(together())) {
            match self.claim_alike(alike).await {
                Ok(claimed) => all.extend(claimed),
                // Jobs that earlier claims took stay taken.
                Err(error) if all.iter().any(|claimed: &Claimed| !claimed.jobs.is_empty()) => {
                    tracing::debug!(%error, "a claim found nothing");
                    all.extend(alike.iter().map(|_| Claimed::default()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    async fn claim_alike(&self, claims: &[Claim]) -> Result<Vec<Claimed>, RedisError> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        let limits: Vec<u32> = claims.iter().map(|claim| claim.limit).collect();
        let wanted = limits.iter().fold(0_u32, |sum, limit| sum.saturating_add(*limit));
        if wanted == 0 {
            return Ok(vec![Claimed::default(); claims.len()]);
        }
        let mut found: Vec<Candidate> =
            self.first_of_all(first, wanted).await?.into_iter().flat_map(|shown| shown.candidates).collect();
        if found.is_empty() {
            return Ok(vec![Claimed::default(); claims.len()]);
        }
        // The order of the whole store, in which the jobs are also handed on.
        found.sort_unstable();
        let order: Map<JobId, usize> = found
            .iter()
            .enumerate()
            .filter_map(|(at, candidate)| Some((JobId::from_bytes(*candidate.place.last_chunk::<16>()?), at)))
            .collect();
        let hands = deal(found, &limits)?;
        let mut taken: Vec<Claimed> = hands
            .iter()
            .map(|hand| Claimed { unclaimable: hand.unclaimable.clone(), ..Claimed::default() })
            .collect();
        let taking = self.parts().iter().filter_map(|shared| {
            let number = shared.partition;
            let (takers, claims): (Vec<usize>, Vec<Claim>) = hands
                .iter()
                .enumerate()
                .filter_map(|(taker, hand)| {
                    let limit = *hand.from.get(&number)?;
                    Some((taker, Claim { limit, ..claims.get(taker)?.clone() }))
                })
                .unzip();
            (!claims.is_empty()).then_some(async move {
                let batch = Batch { groups: Vec::new(), claims };
                (number, takers, self.commit_in(number, &batch).await)
            })
        });
        let mut failure = None;
        for (number, takers, done) in join_all(taking).await {
            match done {
                Ok(applied) => {
                    for (taker, claimed) in takers.into_iter().zip(applied.claims) {
                        for (head, _) in &claimed.jobs {
                            if partition::of_id(head.id, self.count()) != number {
                                self.note(head.id, number);
                            }
                        }
                        taken[taker].jobs.extend(claimed.jobs);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        for claimed in &mut taken {
            claimed.jobs.sort_by_key(|(head, _)| order.get(&head.id).copied().unwrap_or(usize::MAX));
        }
        match failure {
            // Jobs taken from other partitions are granted already, so only an empty result is an error.
            Some(error) if taken.iter().all(|claimed| claimed.jobs.is_empty()) => Err(error),
            Some(error) => {
                tracing::debug!(%error, "one partition gave nothing to a claim");
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    /// What all partitions would grant, as far as needed to know the first `wanted` jobs of the store.
    async fn first_of_all(&self, claim: &Claim, wanted: u32) -> Result<Vec<Shown>, RedisError> {
        let share =
            wanted.div_ceil(u32::from(self.count())).saturating_mul(MORE).clamp(FEW.min(wanted), wanted);
        let ask = |number: u16, asked: u32| async move {
            let claim = Claim { limit: asked, ..claim.clone() };
            let candidates = self.patiently(number, || self.ask(number, &claim)).await?;
            Ok::<_, RedisError>(Shown { partition: number, candidates, asked })
        };
        let mut shown = self.ask_all(|number| ask(number, share)).await?;
        for shared in self.parts() {
            if shown.iter().all(|shown| shown.partition != shared.partition) {
                shared.tell_when_back();
            }
        }
        loop {
            let short = short(&shown, wanted);
            if short.is_empty() {
                return Ok(shown);
            }
            let asking = short.iter().filter_map(|at| {
                let known = shown.get(*at)?;
                Some(ask(known.partition, known.asked.saturating_mul(MUCH_MORE).min(wanted)))
            });
            let said = join_all(asking).await;
            for (at, said) in short.into_iter().zip(said) {
                match said {
                    Ok(said) => shown[at] = said,
                    // It has gone away since: make do with what it has shown.
                    Err(error) if error.passes() => shown[at].asked = wanted,
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// What one partition would grant.
    async fn ask(&self, number: u16, claim: &Claim) -> Result<Vec<Candidate>, RedisError> {
        let shared = self.at(number);
        let mut command = shared.link.call(Script::Claim);
        command.arg("").arg(0);
        shared.push_time(&mut command);
        shared.push_claims(&mut command, std::slice::from_ref(claim));
        let mut said = Values::of(shared.look(command).await?)?;
        shared.saw(said.time()?);
        candidates(number, &bytes(said.take()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, GRANTED, Shown, Unclaimable, short};

    /// One partition's candidates at these places; a negative place is one that is not counted.
    fn shown(partition: u16, asked: u32, at: &[i16]) -> Shown {
        let candidates = at.iter().map(|at| {
            let mut place = [0; 25];
            place[..2].copy_from_slice(&at.unsigned_abs().to_be_bytes());
            let why = if *at < 0 { Unclaimable::Expired.code() } else { GRANTED };
            Candidate { queue: 0, place, partition, why, lane: [0; 8] }
        });
        Shown { partition, candidates: candidates.collect(), asked }
    }

    #[test]
    fn who_may_have_an_earlier_job_is_asked_again() {
        let all = [shown(0, 2, &[1, 2]), shown(1, 2, &[5, 6]), shown(2, 2, &[3])];
        assert_eq!(short(&all, 3), [0], "it may have one before 3");
        assert_eq!(short(&all, 4), [0], "5 is the fourth, and 6 is behind it");
        assert_eq!(short(&all, 9), [0, 1], "the third has no more");
        assert_eq!(short(&all, 2), [0_usize; 0], "they are the first two, whatever comes");
        let all = [shown(0, 3, &[1, 2, 9]), shown(1, 3, &[4, 5, 6])];
        assert_eq!(short(&all, 3), [0_usize; 0], "4 is before 9");
        // A partition that was asked for all wanted jobs has nothing to add.
        assert_eq!(short(&[shown(0, 2, &[1, 2])], 2), [0_usize; 0]);
    }

    #[test]
    fn who_looked_at_as_many_as_he_may_has_perhaps_more() {
        let looks = 2 + i16::try_from(semel_store::bounds::CLAIM_LOOKS_EXTRA).unwrap();
        let expired: Vec<i16> = (1..=looks).map(|at| -at).collect();
        assert_eq!(short(&[shown(0, 2, &expired), shown(1, 2, &[])], 4), [0]);
    }
}

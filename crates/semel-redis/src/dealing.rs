//! Claims over several partitions, in the order of the whole store: each partition says which jobs it would grant, the first of all
//! are taken from where they are. All are asked each time: what another server was told a moment ago may be in any of them.

use futures_util::future::join_all;
use semel_core::draft::Map;
use semel_core::ident::JobId;
use semel_core::lease::Unclaimable;
use semel_core::partition;
use semel_store::backend::{Batch, Claim, Claimed};
use semel_store::bounds::CLAIM_LOOKS_EXTRA;

use crate::claim::is_alike;
use crate::error::RedisError;
use crate::head::Reader;
use crate::partitions::Partitions;
use crate::scripts::Script;
use crate::values::{Values, bytes};

/// A job that a partition would look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The number of its queue among the claim's.
    queue: u16,
    /// Priority, time and id, in the order of their bytes.
    place: [u8; 25],
    partition: u16,
    /// Why it is not granted; 255 when it is.
    why: u8,
}

fn candidates(partition: u16, said: &[u8]) -> Result<Vec<Candidate>, RedisError> {
    let (all, []) = said.as_chunks::<28>() else { return Err(RedisError::Answer("candidates")) };
    let candidate = |bytes: &[u8; 28]| {
        let mut reader = Reader(bytes);
        let (queue, [why], place) = (u16::from_be_bytes(reader.take()?), reader.take()?, reader.take()?);
        Some(Candidate { queue, place, partition, why })
    };
    all.iter().map(|bytes| candidate(bytes).ok_or(RedisError::Answer("candidates"))).collect()
}

/// What each taker gets: how many of each partition, and what he is told of that is not granted.
#[derive(Default)]
struct Hand {
    from: Map<u16, u32>,
    unclaimable: Vec<(JobId, Unclaimable)>,
}

/// Deals the candidates, the first ones first, as the model does it: up to the limit, and looking a bounded way beyond in each queue.
fn deal(mut all: Vec<Candidate>, limits: &[u32]) -> Result<Vec<Hand>, RedisError> {
    all.sort_unstable();
    let mut hands: Vec<Hand> = limits.iter().map(|_| Hand::default()).collect();
    let (mut taker, mut taken) = (0, 0);
    let mut left: usize = limits.iter().map(|limit| *limit as usize).sum();
    for queue in all.chunk_by(|one, other| one.queue == other.queue) {
        let looks = left + usize::from(CLAIM_LOOKS_EXTRA);
        for candidate in queue.iter().take(looks) {
            while limits.get(taker).is_some_and(|limit| taken >= *limit) {
                (taker, taken) = (taker + 1, 0);
            }
            let Some(hand) = hands.get_mut(taker) else { return Ok(hands) };
            let id = candidate.place.last_chunk::<16>().map(|id| JobId::from_bytes(*id));
            let id = id.ok_or(RedisError::Answer("candidates"))?;
            let is_counted = matches!(candidate.why, 3 | 255);
            if is_counted {
                *hand.from.entry(candidate.partition).or_default() += 1;
                (taken, left) = (taken + 1, left.saturating_sub(1));
            }
            hand.unclaimable.extend(match candidate.why {
                0 => Some((id, Unclaimable::Expired)),
                1 => Some((id, Unclaimable::Exhausted)),
                2 => Some((id, Unclaimable::Overlaps)),
                3 => Some((id, Unclaimable::Limited)),
                _ => None,
            });
        }
    }
    Ok(hands)
}

impl Partitions {
    /// Serves claims, in their order.
    pub async fn claim(&self, claims: &[Claim]) -> Result<Vec<Claimed>, RedisError> {
        let mut all = Vec::with_capacity(claims.len());
        for alike in claims.chunk_by(is_alike) {
            all.extend(self.claim_alike(alike).await?);
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
        let asked = Claim { limit: wanted, ..first.clone() };
        let asking = self.parts().iter().map(|shared| {
            let (number, asked) = (shared.partition, &asked);
            self.patiently(number, move || self.ask(number, asked))
        });
        let mut found = Vec::new();
        for said in join_all(asking).await {
            found.extend(said?);
        }
        if found.is_empty() {
            return Ok(vec![Claimed::default(); claims.len()]);
        }
        // By the order of the whole store, in which they are handed on as well.
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
            // What others gave is somebody's.
            Some(error) if taken.iter().all(|claimed| claimed.jobs.is_empty()) => Err(error),
            Some(error) => {
                tracing::debug!(%error, "one partition gave nothing to a claim");
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    /// What a partition would grant.
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

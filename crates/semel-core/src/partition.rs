//! Which partition of a divided store something belongs to: a pure function of its bytes and of the number of partitions.
//!
//! The function is frozen: existing stores were laid out by it.

use crate::draft::DocumentKey;
use crate::ident::{JobId, QueueName};
use crate::unique::UniqueKey;

/// Most partitions of a store, more than any needs. An id names its own in one byte.
pub const PARTITIONS_MAX: u16 = 256;

/// The partition of a unique key, and so of all jobs that carry it.
pub fn of_key(key: &UniqueKey, partitions: u16) -> u16 {
    of(hash(key.as_bytes(), BASIS), partitions)
}

/// An id's own partition: it holds the job, or says which other partition does. Whatever mints an id chooses it.
pub fn of_id(id: JobId, partitions: u16) -> u16 {
    let last = id.to_bytes()[15];
    if partitions < 2 { 0 } else { u16::from(last) % partitions }
}

/// The partition of a document.
pub fn of_document(key: &DocumentKey, partitions: u16) -> u16 {
    of(hash(key.name.as_bytes(), hash(&[key.kind.code()], BASIS)), partitions)
}

/// The partition of a row that is [no queue](QueueName::is_queue), such as a limit's or a worker's. A queue's row
/// is in every partition.
pub fn of_row(name: &QueueName, partitions: u16) -> u16 {
    of(hash(name.as_str().as_bytes(), BASIS), partitions)
}

fn of(hash: u64, partitions: u16) -> u16 {
    if partitions < 2 {
        return 0;
    }
    // The upper bits are better mixed.
    let part = (u128::from(hash) * u128::from(partitions)) >> 64;
    u16::try_from(part).unwrap_or(0)
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, finished like splitmix64, so that even names of one letter are spread.
fn hash(bytes: &[u8], basis: u64) -> u64 {
    let mut sum = basis;
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let mut mixed = sum;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DocumentKind;
    use crate::time::Timestamp;

    #[test]
    fn a_minted_id_names_the_partition_it_was_minted_for() {
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        for partitions in [1, 2, 3, 16, 255, PARTITIONS_MAX] {
            for partition in 0..partitions {
                for entropy in [0, 0xff, 0x3f_ffff, 0x12_3456] {
                    let id = JobId::mint_in(at, 7, entropy, partition, partitions);
                    assert_eq!((of_id(id, partitions), id.row()), (partition, 7));
                }
            }
        }
        assert_eq!(
            JobId::mint_in(at, 7, 0xabcd, 0, 1),
            JobId::mint(at, 7, 0xabcd),
            "one partition changes nothing"
        );
        assert_eq!(JobId::mint_in(at, 7, 0, 999, 1_000).row(), 7, "more than there may be");
    }

    #[test]
    fn all_partitions_get_their_share() {
        let mut counts = [[0_u32; 16]; 3];
        for number in 0..16_000_u32 {
            let mut bytes = [7; 32];
            bytes[28..].copy_from_slice(&number.to_be_bytes());
            counts[0][usize::from(of_key(&UniqueKey::from_bytes(bytes), 16))] += 1;
            let name = DocumentKey::new(DocumentKind::Cron, number.to_string());
            counts[1][usize::from(of_document(&name, 16))] += 1;
            counts[2][usize::from(of_row(&QueueName::from_stored(&number.to_string()), 16))] += 1;
        }
        assert!(counts.iter().flatten().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    /// Records stored by these functions have to be found again.
    #[test]
    fn they_are_frozen() {
        let key = UniqueKey::from_bytes([1; 32]);
        let document = DocumentKey::new(DocumentKind::Cron, "nightly");
        assert_eq!(
            (of_key(&key, 256), of_document(&document, 256), of_row(&QueueName::default(), 256)),
            FROZEN
        );
    }

    const FROZEN: (u16, u16, u16) = (17, 55, 241);
}

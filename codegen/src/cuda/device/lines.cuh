// Lines of a reduction: loads of whole groups, merges within a few threads, a block, a cluster, and over the blocks that share a line.

// A group that starts on its own size, or on 16 bytes where it is larger. Elements below 32 bits come in words: a group that is the result of
// a function or copied as a whole would be taken apart into its elements, and put together again where words are asked for.
template <class T, int width>
DEVICE void load_pack(Pack<T, width>& pack, const T* from) {
    constexpr int size = sizeof(pack), piece = size % 16 == 0 ? 16 : size;
    if constexpr (sizeof(T) < 4 && piece % 4 == 0) {
#pragma unroll
        for (int i = 0; i < size; i += piece) {
            const Pack<u32, piece / 4> words = *(const Pack<u32, piece / 4>*)((const char*)from + i);
#pragma unroll
            for (int j = 0; j < piece / 4; j++) ((u32*)&pack)[i / 4 + j] = words.at[j];
        }
    } else if constexpr (size <= 16) {
        pack = *(const Pack<T, width>*)from;
    } else {
        constexpr int part = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < width; i += part) *(Pack<T, part>*)&pack.at[i] = *(const Pack<T, part>*)(from + i);
    }
}
// Values as they are stored; halves are rounded two at a time (PTX ISA, "cvt").
DEVICE u32 round_pair(float low, float high, bf16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE u32 round_pair(float low, float high, f16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <class S> constexpr bool has_pairs = false;
template <> constexpr bool has_pairs<bf16> = true;
template <> constexpr bool has_pairs<f16> = true;
template <class S, class T, int width>
DEVICE Pack<S, width> packed(const T (&values)[width]) {
    Pack<S, width> pack;
    if constexpr (has_pairs<S> && width % 2 == 0) {
#pragma unroll
        for (int i = 0; i < width; i += 2) *(u32*)&pack.at[i] = round_pair(values[i], values[i + 1], S());
    } else {
#pragma unroll
        for (int e = 0; e < width; e++) pack.at[e] = cast<S>(values[e]);
    }
    return pack;
}
// In as few instructions as there are 16 bytes: left to itself, the compiler stores element by element.
template <class T, int width>
DEVICE void store_pack(T* to, const Pack<T, width>& pack) {
    constexpr int size = sizeof(pack), piece = size % 16 == 0 ? 16 : size % 8 == 0 ? 8 : size % 4 == 0 ? 4 : size;
    if constexpr (piece < 4) {
        *(Pack<T, width>*)to = pack;
    } else {
        const u32* words = (const u32*)&pack;
        char* at = (char*)to;
#pragma unroll
        for (int i = 0; i < size / 4; i += piece / 4) {
            if constexpr (piece == 16)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at + 4 * i), "r"(words[i]), "r"(words[i + 1]),
                             "r"(words[i + 2]), "r"(words[i + 3]) : "memory");
            else if constexpr (piece == 8)
                asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at + 4 * i), "r"(words[i]), "r"(words[i + 1]) : "memory");
            else
                asm volatile("st.global.b32 [%0], %1;" ::"l"(at + 4 * i), "r"(words[i]) : "memory");
        }
    }
}

// The same value, of which the compiler knows nothing: it would move loads that one condition guards to where they are used under the same
// condition, one after the other.
DEVICE i32 unknown(i32 x) {
    asm volatile("" : "+r"(x));
    return x;
}
DEVICE i64 unknown(i64 x) {
    asm volatile("" : "+l"(x));
    return x;
}

// Keeps the compiler from carrying what it made of these from one pass to the next: the stored form takes fewer registers.
template <class P>
DEVICE void reread(P& pack) {
    if constexpr (sizeof(P) % 4 == 0) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(P) / 4; i++) asm volatile("" : "+r"(((u32*)&pack)[i]));
    }
}

template <int bytes>
DEVICE void keep_piece(u32 to, const char* from) {
    if (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}
// Begins to copy a group to where this thread keeps it; it is there when `kept_but` says so.
template <class T, int width>
DEVICE void keep_pack(Pack<T, width>& slot, const T* from) {
    constexpr int size = sizeof(slot), piece = size % 16 == 0 ? 16 : size % 8 == 0 ? 8 : size % 4 == 0 ? 4 : size;
    if constexpr (piece >= 4) {
        u32 to = (u32)__cvta_generic_to_shared(&slot);
#pragma unroll
        for (int i = 0; i < size; i += piece)
            keep_piece<piece>(to + i, (const char*)from + i);
    } else {
        load_pack(slot, from);
    }
}
// Ends a line's copies, and waits for those of all lines but the last `later`.
DEVICE void keep_line() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int later>
DEVICE void kept_but() { asm volatile("cp.async.wait_group %0;" ::"n"(later) : "memory"); }

// Every lane of an aligned group of `lanes` (a power of two) ends with the merge of the group.
template <int lanes, class S>
DEVICE void merge_lanes(S& state) {
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
        S other = shuffle_xor(state, mask);
        if ((threadIdx.x & mask) == 0) {
            state.merge(other);
        } else {
            other.merge(state);
            state = other;
        }
    }
}

// The states of several lines over an aligned group of `lanes`; both are powers of two. As long as a lane has two lines, it gives one half of
// them to a partner for the partner's other half; then partners merge what they have both. Where there are as many lanes as lines or more,
// `lanes / lines` neighbours end with the merge of one line, else each lane with those of `lines / lanes` lines, the first ones of `states`.
template <int lanes, class S, int lines>
DEVICE void merge_lines(S (&states)[lines]) {
    if constexpr (lanes > 1 && lines > 1) {
        union Words { S value; u32 words[sizeof(S) / 4]; __device__ Words() {} };
        S kept[lines / 2];
        const bool upper = (threadIdx.x & (lanes / 2)) != 0;
#pragma unroll
        for (int i = 0; i < lines / 2; i++) {
            // Words are chosen, not states: a choice of states would be one of addresses, in local memory.
            Words low, high, own, given;
            low.value = states[i];
            high.value = states[lines / 2 + i];
#pragma unroll
            for (int w = 0; w < (int)sizeof(S) / 4; w++) {
                own.words[w] = upper ? high.words[w] : low.words[w];
                given.words[w] = __shfl_xor_sync(0xffffffffu, upper ? low.words[w] : high.words[w], lanes / 2);
            }
            own.value.merge(given.value);
            kept[i] = own.value;
        }
        merge_lines<lanes / 2>(kept);
#pragma unroll
        for (int i = 0; i < lines / 2; i++) states[i] = kept[i];
    } else if constexpr (lanes > 1) {
        merge_lanes<lanes>(states[0]);
    }
}

// Every thread of a block ends with the merge of all. Calls with the same `turn` (0 or 1) must have a barrier between them.
template <int threads, class S>
DEVICE void merge_block(S& state, int turn) {
    constexpr int warps = threads / 32;
    __shared__ alignas(16) char raw[2][warps * sizeof(S)];
    S* const shared = (S*)raw[turn];
    merge_lanes<32>(state);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = state;
    __syncthreads();
    state = shared[threadIdx.x % warps];
    merge_lanes<warps>(state);
}

// True in the block that comes last of the `blocks` which call this with the same counter; what the others wrote before is visible to it.
// The counter is zero before and after.
DEVICE bool comes_last(u32* counter, u32 blocks) {
    __shared__ u32 before;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        // Releases what the block's threads wrote before the barrier, and acquires what other blocks released (PTX ISA, "Causality order").
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        if (before == blocks - 1) *counter = 0;
    }
    __syncthreads();
    return before == blocks - 1;
}

// What another block wrote before `comes_last`: past this multiprocessor's own cache.
template <class S>
DEVICE S fresh(const S* from) {
    union Words { S value; u32 words[sizeof(S) / 4]; __device__ Words() {} } out;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); i++)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(out.words[i]) : "l"((const u32*)from + i) : "memory");
    return out.value;
}

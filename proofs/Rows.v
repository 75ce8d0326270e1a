(** Operations of rows (softmax, norms) and layers with float32 results: their sums are exact, and what follows is one fixed
    sequence of roundings, the same on every engine (docs/arithmetic.md, 6 and 7). *)

From Coq Require Import ZArith Reals List Lia.
From Flocq Require Import Core.
From Intact Require Import Exact.
Import ListNotations.
Open Scope Z_scope.

Definition total (row : list Z) : Z := fold_right Z.add 0 row.
Definition squares (row : list Z) : Z := fold_right (fun x s => x * x + s) 0 row.
Definition count (row : list Z) : Z := Z.of_nat (length row).

(** ** Norms: x' = x - 128 of a row, or of a group, of at most [LONGEST_ROW] integers *)

Lemma row_sizes row :
  Forall (fun x => -128 <= x <= 127) row ->
  Z.abs (total row) <= 128 * count row /\ 0 <= squares row <= 16384 * count row.
Proof.
unfold total, squares, count. induction 1 as [| x rest size others step]; [simpl; lia |].
cbn [fold_right length]. rewrite Nat2Z.inj_succ. assert (0 <= x * x <= 16384) by nia. lia.
Qed.

(** The sums are integers of 32 bits (the squares of 33), and the variance, n·Q - S², is a float64. *)
Theorem norm_is_exact choice row :
  Forall (fun x => -128 <= x <= 127) row -> count row <= 131072 ->
  Z.abs (total row) <= 2 ^ 24 /\ squares row <= 2 ^ 31 /\
  rounded_sum 53 (-1074) choice (IZR (count row * squares row - total row * total row))
  = IZR (count row * squares row - total row * total row).
Proof.
intros inside short. destruct (row_sizes row inside) as [sum_size square_size].
assert (0 <= count row) by (unfold count; lia).
assert (Z.abs (total row) <= 16777216 /\ squares row <= 2147483648) as [sum_small squares_small] by lia.
split; [exact sum_small | split; [exact squares_small |]].
apply integer_is_held; [lia |].
assert (0 <= count row * squares row <= 131072 * 2147483648).
{ split; [apply Z.mul_nonneg_nonneg; lia | apply Z.mul_le_mono_nonneg; lia]. }
assert (0 <= total row * total row <= 16777216 * 16777216).
{ rewrite <- Z.abs_square. split; [apply Z.mul_nonneg_nonneg; lia | apply Z.mul_le_mono_nonneg; lia]. }
change (2 ^ 53) with 9007199254740992. lia.
Qed.

(** ** Softmax: terms of a table, at most [PEAK] *)

Lemma terms_size row : Forall (fun t => 0 <= t <= 16383) row -> 0 <= total row <= 16383 * count row.
Proof.
unfold total, count. induction 1 as [| t rest size others step]; [simpl; lia |].
cbn [fold_right length]. rewrite Nat2Z.inj_succ. lia.
Qed.

(** Up to [FLOAT32_TERMS] terms float32 adds them exactly, in any order; up to 131080 an int32 holds the sum. *)
Theorem softmax_is_exact choice row :
  Forall (fun t => 0 <= t <= 16383) row ->
  (count row <= 1024 -> rounded_sum 24 (-149) choice (IZR (total row)) = IZR (total row)) /\
  (count row <= 131080 -> total row < 2 ^ 31).
Proof.
intros inside. pose proof (terms_size row inside). split; intros short; [| change (2 ^ 31) with 2147483648; lia].
apply integer_is_held; [lia | change (2 ^ 24) with 16777216; lia].
Qed.

(** ** Layers with float32 results, static or dynamic: fl(fl(fl(acc)·M) + b), and fl(fl(fl(fl(acc)·s_w)·s) + b) *)

Section Results.

Variable float32 : R -> R.
Variables (M b s_w s : R).

Definition static_result (acc : Z) : R := float32 (float32 (float32 (IZR acc) * M) + b).
Definition dynamic_result (acc : Z) : R := float32 (float32 (float32 (float32 (IZR acc) * s_w) * s) + b).

(** Two engines that add the same products, each in its own order, give the same bits. *)
Theorem same_results (first second : list Z) :
  total first = total second ->
  static_result (total first) = static_result (total second) /\ dynamic_result (total first) = dynamic_result (total second).
Proof. intros ->. split; reflexivity. Qed.

End Results.

Print Assumptions norm_is_exact.
Print Assumptions softmax_is_exact.
Print Assumptions same_results.

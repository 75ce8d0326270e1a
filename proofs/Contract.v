(** A certified operation yields one integer, whatever form an engine evaluates (docs/arithmetic.md, 3 and 4).

    Units are steps of the output. v = n/b is the exact result above the zero point z1 + z2, W is a bound of the exact numbers
    v and v + z1, B of the bias and C of the sum of the residuals. An evaluation whose cost is at most r·W + k·B + l·C has
    the roundings (r, k, l) of intact8.arithmetic.tie_free. *)

From Coq Require Import ZArith Reals Lia Lra Psatz.
From Flocq Require Import Core.
From Intact Require Import TieFree Float32.
Open Scope R_scope.

Definition deepest : nat := 20.
Definition most_nodes : nat := 64.

Lemma power_bound : (1 + u) ^ deepest <= 1 + / 833333.
Proof. unfold u, deepest. simpl. lra. Qed.

Record roundings := { of_result : nat; of_bias : nat; of_residual : nat }.

Definition counted (k : roundings) (W B C : R) : R :=
  INR (of_result k) * W + INR (of_bias k) * B + INR (of_residual k) * C.

Definition clamp (lo hi x : Z) : Z := Z.max lo (Z.min hi x).

Lemma at_least choice k y : IZR k - / 2 < y -> (k <= Znearest choice y)%Z.
Proof.
intros above. pose proof (Znearest_half choice y) as half. apply Rabs_le_inv in half.
apply Zlt_succ_le. apply lt_IZR. rewrite succ_IZR. lra.
Qed.

Lemma at_most choice k y : y < IZR k + / 2 -> (Znearest choice y <= k)%Z.
Proof.
intros below. pose proof (Znearest_half choice y) as half. apply Rabs_le_inv in half.
apply Zlt_succ_le. apply lt_IZR. rewrite succ_IZR. lra.
Qed.

Section Operation.

Variables (n b z1 z2 lo hi : Z) (k : roundings) (reach B C : R).
Hypothesis positive : (0 < b)%Z.
Hypothesis odd : Z.odd b = true.
(** The zero point is z1 + z2: z1 is added before the last rounding, z2 behind it. *)
Hypothesis zero_points : (0 <= z1 /\ 0 <= z2 /\ z1 + z2 <= 255)%Z.
Hypothesis range : (0 <= lo /\ hi <= 255)%Z.
Hypothesis bias : 0 <= B.
Hypothesis residual : 0 <= C.
Hypothesis rounded_once : (1 <= of_result k <= 1024)%nat.
(** What a certificate checks: [error_bound] of intact8.arithmetic.tie_free is below half of 1/b. *)
Hypothesis margin : u * counted k reach B C < / (2 * IZR b).
(** [LARGEST_STEPS] of intact8.arithmetic.tie_free: what keeps products of roundings below the last part of a step. *)
Hypothesis moderate : INR (of_bias k) * B + INR (of_residual k) * C <= 393216 * INR (of_result k).

Let v := IZR n / IZR b.

(** [result_steps]: 256 holds every unsaturated result; z1 + z2 + 1 those of negative sums ([unsaturated], [negative]). *)
Hypothesis within : -51/100 <= v + IZR z1 + IZR z2 <= 25551/100 -> Rabs v <= reach - 49/100 /\ Rabs (v + IZR z1) <= reach - 49/100.
Hypothesis some_reach : 49/100 <= reach <= 256.

Variable form : R -> expression.
Hypothesis means : forall W, exact (form W) = v + IZR z1.
Hypothesis sizes : forall W, Rabs v <= W -> Rabs (v + IZR z1) <= W -> bounded (form W).
Hypothesis costs : forall W, 0 <= W -> cost (form W) <= counted k W B C.
Hypothesis shallow : forall W, (depth (form W) <= deepest)%nat.
Hypothesis small : forall W, (nodes (form W) <= most_nodes)%nat.

Variable y : R.
Hypothesis computed : forall W, evaluates (form W) y.

Lemma error W : 0 <= W -> Rabs v <= W -> Rabs (v + IZR z1) <= W ->
  Rabs (y - (v + IZR z1)) <= u * (1 + / 833333) * counted k W B C + bpow radix2 (-90).
Proof.
intros wide v_size t_size. specialize (sizes W v_size t_size).
pose proof (evaluation_error (form W) y sizes (computed W)) as near. rewrite means in near.
eapply Rle_trans; [exact near |]. pose proof (costs W wide) as price. pose proof u_positive.
pose proof (power_increases (depth (form W)) deepest (shallow W)) as deep. pose proof power_bound.
pose proof (power_at_least_one (depth (form W))). pose proof (cost_positive (form W) sizes).
set (p := (1 + u) ^ depth (form W)) in *.
apply Rplus_le_compat.
- apply Rmult_le_compat; nra.
- assert (INR (nodes (form W)) <= 64) as few.
  { replace 64 with (INR most_nodes) by (unfold most_nodes; simpl; lra). apply le_INR, small. }
  pose proof (pos_INR (nodes (form W))). pose proof underflow_positive.
  assert (INR (nodes (form W)) * p <= 128) by nra.
  apply Rle_trans with (128 * underflow); [apply Rmult_le_compat_r; lra |].
  unfold underflow. replace 128 with (bpow radix2 7) by (simpl; lra). rewrite <- bpow_plus.
  apply bpow_le. lia.
Qed.

Lemma tiny : bpow radix2 (-90) <= / 1208925819614629174706176. (* 2^-80 *)
Proof. simpl. lra. Qed.

Lemma b_real : 1 <= IZR b.
Proof. apply IZR_le. lia. Qed.

Lemma half_margin : / (2 * IZR b) <= / 2.
Proof. pose proof b_real. apply Rinv_le; lra. Qed.

Theorem one_integer (ideal choice : Z -> bool) :
  clamp lo hi (Znearest choice y + z2) = clamp lo hi (Znearest ideal v + (z1 + z2)).
Proof.
pose proof tiny as small_number. pose proof half_margin. pose proof u_positive.
destruct rounded_once as [once many]. apply le_INR in once, many. rewrite (INR_IZR_INZ 1024) in many. simpl in once, many.
destruct zero_points as (z1_positive & z2_positive & z_small).
apply IZR_le in z1_positive, z2_positive, z_small. rewrite plus_IZR in z_small.
unfold counted in *. set (r := INR (of_result k)) in *.
set (rest := INR (of_bias k) * B + INR (of_residual k) * C) in *.
assert (0 <= rest).
{ unfold rest. pose proof (pos_INR (of_bias k)). pose proof (pos_INR (of_residual k)). nra. }
assert (error' : forall W, 0 <= W -> Rabs v <= W -> Rabs (v + IZR z1) <= W ->
  Rabs (y - (v + IZR z1)) <= u * (1 + / 833333) * (r * W + rest) + / 1208925819614629174706176).
{ intros W wide v_size t_size. pose proof (error W wide v_size t_size) as near. unfold counted in near. fold r in near.
  unfold rest. lra. }
assert (margin' : u * (r * reach + rest) < / (2 * IZR b)) by (unfold rest; lra).
unfold u in *.
destruct (Rlt_le_dec (v + IZR z1 + IZR z2) (-51/100)) as [low | not_low];
  [| destruct (Rlt_le_dec (25551/100) (v + IZR z1 + IZR z2)) as [high | not_high]].
- (* far below: both are clamped *)
  assert (Znearest choice y + z2 <= 0)%Z.
  { assert (Znearest choice y <= - z2)%Z; [apply at_most | lia]. rewrite opp_IZR.
    assert (near : Rabs (y - (v + IZR z1)) <= / 16777216 * (1 + / 833333)
      * (r * (255 - (v + IZR z1 + IZR z2)) + rest) + / 1208925819614629174706176).
    { apply error'; [lra | |]; apply Rabs_le; lra. }
    apply Rabs_le_inv in near. nra. }
  assert (Znearest ideal v + (z1 + z2) <= 0)%Z.
  { assert (Znearest ideal v <= - (z1 + z2))%Z; [apply at_most | lia]. rewrite opp_IZR, plus_IZR. lra. }
  unfold clamp. lia.
- (* far above: both are clamped *)
  assert (255 <= Znearest choice y + z2)%Z.
  { assert (255 - z2 <= Znearest choice y)%Z; [apply at_least | lia]. rewrite minus_IZR.
    assert (near : Rabs (y - (v + IZR z1)) <= / 16777216 * (1 + / 833333)
      * (r * (255 + (v + IZR z1 + IZR z2)) + rest) + / 1208925819614629174706176).
    { apply error'; [lra | |]; apply Rabs_le; lra. }
    apply Rabs_le_inv in near. nra. }
  assert (255 <= Znearest ideal v + (z1 + z2))%Z.
  { assert (255 - (z1 + z2) <= Znearest ideal v)%Z; [apply at_least | lia]. rewrite minus_IZR, plus_IZR. lra. }
  unfold clamp. lia.
- (* within the range: the tie margin *)
  f_equal. assert (shifted : v + IZR z1 = IZR (n + z1 * b) / IZR b).
  { unfold v. rewrite plus_IZR, mult_IZR. pose proof b_real. field. lra. }
  assert (Znearest choice y = Znearest ideal (v + IZR z1)) as ->.
  { rewrite shifted. apply (same_integer _ b positive odd). rewrite <- shifted.
    assert (near : Rabs (y - (v + IZR z1)) <= / 16777216 * (1 + / 833333)
      * (r * (reach - 49/100) + rest) + / 1208925819614629174706176).
    { apply error'; [lra | |]; apply within; lra. }
    assert (r * (reach - 49/100) * (1 + / 833333) + rest * / 833333 + 16777216 * / 1208925819614629174706176 < r * reach) by nra.
    lra. }
  assert (Znearest ideal (v + IZR z1) = Znearest ideal v + z1)%Z as ->; [| lia].
  apply Znearest_imp. rewrite plus_IZR.
  replace (v + IZR z1 - (IZR (Znearest ideal v) + IZR z1)) with (v - IZR (Znearest ideal v)) by ring.
  pose proof (Znearest_half ideal v) as half.
  destruct (Rle_lt_or_eq_dec _ _ half) as [strict | tie]; [exact strict | exfalso].
  revert tie. unfold Rabs. destruct Rcase_abs; intros tie.
  + apply (no_tie n b positive odd (Znearest ideal v - 1)). rewrite minus_IZR. fold v. lra.
  + apply (no_tie n b positive odd (Znearest ideal v)). fold v. lra.
Qed.

End Operation.

Lemma unsaturated v z1 z2 : 0 <= z1 -> 0 <= z2 -> z1 + z2 <= 255 ->
  -51/100 <= v + z1 + z2 <= 25551/100 -> Rabs v <= 256 - 49/100 /\ Rabs (v + z1) <= 256 - 49/100.
Proof. intros. split; apply Rabs_le; lra. Qed.

Lemma negative v z1 z2 : 0 <= z1 -> 0 <= z2 -> v <= 0 ->
  -51/100 <= v + z1 + z2 <= 25551/100 -> Rabs v <= (z1 + z2 + 1) - 49/100 /\ Rabs (v + z1) <= (z1 + z2 + 1) - 49/100.
Proof. intros. split; apply Rabs_le; lra. Qed.

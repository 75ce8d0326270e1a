(** The contract: a certified operation yields the same integer in every form of every engine. *)

From Coq Require Import ZArith Reals List Lia Lra Psatz.
From Flocq Require Import Core Relative.
From Intact Require Import TieFree Float32 Contract Roundings Forms.
From Intact Require Integers.
Open Scope R_scope.

(** ** Leaves: fl(fl(acc)·fl(m)) is three roundings of acc·m, fl(k·fl(r)) two *)

Lemma integer_after choice n : after 1 (IZR n) (float32 choice (IZR n)).
Proof.
apply after_rounding; [apply after_none |]. destruct (Z.eq_dec n 0) as [-> | other]; [left; reflexivity | right].
apply Rle_trans with 1; [change 1 with (bpow radix2 0); apply bpow_le; lia |].
rewrite <- abs_IZR. apply IZR_le. lia.
Qed.

Lemma stored_after choice m : bpow radix2 (-90) <= Rabs m -> after 1 m (float32 choice m).
Proof.
intros large. apply after_rounding; [apply after_none | right].
eapply Rle_trans; [apply bpow_le | exact large]. lia.
Qed.

(** What few roundings leave is at least half as large. *)
Lemma after_size n x y : (n <= 2)%nat -> after n x y -> / 2 * Rabs x <= Rabs y.
Proof.
unfold after. intros few near.
assert ((1 + u) ^ n <= 3 / 2).
{ eapply Rle_trans; [apply (power_increases n 2 few) |]. unfold u. simpl. lra. }
pose proof (Rabs_pos x). pose proof (Rabs_triang_inv x (x - y)) as size.
replace (x - (x - y)) with y in size by ring. rewrite (Rabs_minus_sym x y) in size.
assert (Rabs (y - x) <= / 2 * Rabs x) by nra. lra.
Qed.

Theorem product_leaf c1 c2 c3 n m :
  bpow radix2 (-90) <= Rabs m ->
  after 3 (IZR n * m) (float32 c3 (float32 c1 (IZR n) * float32 c2 m)).
Proof.
intros large. pose proof (after_product 1 1 _ _ _ _ (integer_after c1 n) (stored_after c2 m large)) as near.
apply after_rounding; [exact near |].
destruct (Z.eq_dec n 0) as [-> | other].
- left. unfold float32 at 1. rewrite round_0 by apply valid_rnd_N. ring.
- right. apply Rle_trans with (/ 2 * Rabs (IZR n * m)); [| apply (after_size 2); [lia | exact near]].
  rewrite Rabs_mult, <- abs_IZR. assert (1 <= IZR (Z.abs n)) by (apply IZR_le; lia).
  assert (bpow radix2 (-90) <= IZR (Z.abs n) * Rabs m).
  { pose proof (bpow_gt_0 radix2 (-90)). nra. }
  assert (bpow radix2 (-126) <= / 2 * bpow radix2 (-90)).
  { change (/ 2) with (bpow radix2 (-1)). rewrite <- bpow_plus. apply bpow_le. lia. }
  lra.
Qed.

Theorem term_leaf c1 c2 n r :
  bpow radix2 (-90) <= Rabs r -> after 2 (IZR n * r) (float32 c2 (IZR n * float32 c1 r)).
Proof.
intros large. pose proof (after_product 0 1 _ _ _ _ (after_none (IZR n)) (stored_after c1 r large)) as near.
apply after_rounding; [exact near |].
destruct (Z.eq_dec n 0) as [-> | other]; [left; ring | right].
apply Rle_trans with (/ 2 * Rabs (IZR n * r)); [| apply (after_size 1); [lia | exact near]].
rewrite Rabs_mult, <- abs_IZR. assert (1 <= IZR (Z.abs n)) by (apply IZR_le; lia).
assert (bpow radix2 (-90) <= IZR (Z.abs n) * Rabs r) by (pose proof (bpow_gt_0 radix2 (-90)); nra).
assert (bpow radix2 (-126) <= / 2 * bpow radix2 (-90)).
{ change (/ 2) with (bpow radix2 (-1)). rewrite <- bpow_plus. apply bpow_le. lia. }
lra.
Qed.

Lemma float32_stands choice x : stands_for x (float32 choice x).
Proof.
replace (float32 choice x) with (1 * float32 choice (x / 1)) by (unfold Rdiv; rewrite Rinv_1, Rmult_1_r, Rmult_1_l; reflexivity).
apply float32_error. split; [lra |]. change 1 with (bpow radix2 0). apply bpow_le. lia.
Qed.

(** ** The theorem *)

(** What the certificate of an operation checks of one channel: M·acc + Σ r_j·x_j = n/b, an odd b, and the margin. *)
Record certificate (n b z lo hi : Z) (k : roundings) (reach B C : R) : Prop := {
  denominator : (0 < b)%Z;
  odd_denominator : Z.odd b = true;
  clamps : (0 <= lo /\ hi <= 255)%Z;
  some_bias : 0 <= B;
  some_residual : 0 <= C;
  some_rounding : (1 <= of_result k <= 1024)%nat;
  tie_margin : u * counted k reach B C < / (2 * IZR b);
  unsaturated_result : reach = 256 \/ (IZR n / IZR b <= 0 /\ reach = IZR z + 1);
  byte : (0 <= z <= 255)%Z;
  few_steps : INR (of_bias k) * B + INR (of_residual k) * C <= 393216 * INR (of_result k)
}.

Theorem certified n b z lo hi k reach B C z1 z2 form y choice ideal :
  certificate n b z lo hi k reach B C ->
  (0 <= z1 /\ 0 <= z2 /\ z1 + z2 = z)%Z ->
  has_roundings form (IZR n / IZR b) (IZR z1) k B C ->
  (forall W, evaluates (form W) y) ->
  clamp lo hi (Znearest choice y + z2) = clamp lo hi (Znearest ideal (IZR n / IZR b) + z).
Proof.
intros proof (first & second & <-) (means & sizes & costs & shallow & small) computed.
destruct proof as [? ? ? ? ? ? ? reached [low high] ?].
pose proof (IZR_le _ _ first) as first'. pose proof (IZR_le _ _ second) as second'. pose proof (IZR_le _ _ high) as high'.
rewrite plus_IZR in *.
apply (one_integer n b z1 z2 lo hi k reach B C) with (form := form); try assumption; [lia | |].
- destruct reached as [-> | [below ->]]; [apply unsaturated; lra | apply negative; lra].
- destruct reached as [-> | [below ->]]; lra.
Qed.

(** Two engines, two forms: one integer. [k] has the larger numbers of both. *)
Corollary same_everywhere n b z lo hi k reach B C z1 z2 z1' z2' form form' y y' choice choice' :
  certificate n b z lo hi k reach B C ->
  (0 <= z1 /\ 0 <= z2 /\ z1 + z2 = z /\ 0 <= z1' /\ 0 <= z2' /\ z1' + z2' = z)%Z ->
  has_roundings form (IZR n / IZR b) (IZR z1) k B C -> (forall W, evaluates (form W) y) ->
  has_roundings form' (IZR n / IZR b) (IZR z1') k B C -> (forall W, evaluates (form' W) y') ->
  clamp lo hi (Znearest choice y + z2) = clamp lo hi (Znearest choice' y' + z2').
Proof.
intros proof (? & ? & ? & ? & ? & ?) first computed second computed'.
rewrite (certified n b z lo hi k reach B C z1 z2 form y choice choice proof) by auto.
rewrite (certified n b z lo hi k reach B C z1' z2' form' y' choice' choice proof) by auto.
reflexivity.
Qed.

(** More roundings may be counted than there are. *)
Theorem weaker form v z k k' B C :
  0 <= B -> 0 <= C ->
  (of_result k <= of_result k')%nat -> (of_bias k <= of_bias k')%nat -> (of_residual k <= of_residual k')%nat ->
  has_roundings form v z k B C -> has_roundings form v z k' B C.
Proof.
intros someB someC result bias residual (means & sizes & costs & shallow & small).
split; [exact means | split; [exact sizes | split; [| split; [exact shallow | exact small]]]].
intros W wide. eapply Rle_trans; [apply costs; exact wide |]. unfold counted.
apply le_INR in result, bias, residual.
assert (INR (of_result k) * W <= INR (of_result k') * W) by (apply Rmult_le_compat_r; lra).
assert (INR (of_bias k) * B <= INR (of_bias k') * B) by (apply Rmult_le_compat_r; assumption).
assert (INR (of_residual k) * C <= INR (of_residual k') * C) by (apply Rmult_le_compat_r; assumption).
lra.
Qed.

(** An affine operation in the forms of native, ONNX Runtime and onednn, from the numbers that they store to the integer. *)
Corollary affine_on_two_engines (acc bias a b z lo hi : Z) (c1 c2 c3 c4 c5 c6 c7 c8 choice choice' : Z -> bool) :
  let M := IZR a / IZR b in
  let B := Rabs (IZR bias * M) in
  bpow radix2 (-90) <= Rabs M ->
  certificate (a * (acc + bias)) b z lo hi FORMS_affine 256 B 0 ->
  let exact_sum := float32 c3 (float32 c1 (IZR (acc + bias)) * float32 c2 M) in
  let separate_bias := float32 c7 (float32 c6 (float32 c4 (IZR acc) * float32 c2 M) + float32 c5 (IZR bias * M)) in
  clamp lo hi (Znearest choice (float32 c8 (exact_sum + IZR z))) =
  clamp lo hi (Znearest choice' (float32 c8 (float32 c7 (separate_bias + 0) + IZR z))).
Proof.
intros M B large proof exact_sum separate_bias.
assert (z_low : (0 <= z)%Z) by (destruct proof; lia). assert (z_high : (z <= 255)%Z) by (destruct proof; lia).
assert (real : IZR b <> 0) by (destruct proof; apply not_0_IZR; lia).
assert (byte : 0 <= IZR z <= 255) by (split; apply IZR_le; assumption).
assert (size : Rabs (IZR bias * M) <= B) by apply Rle_refl.
assert (none : Rabs 0 <= 0) by (rewrite Rabs_R0; lra).
assert (value : IZR (a * (acc + bias)) / IZR b = IZR acc * M + IZR bias * M).
{ unfold M. rewrite mult_IZR, plus_IZR. field. exact real. }
rewrite <- (Z.add_0_r (Znearest choice _)), <- (Z.add_0_r (Znearest choice' _)).
apply (same_everywhere (a * (acc + bias)) b z lo hi FORMS_affine 256 B 0 z 0 z 0
  (exact_sum_form (IZR acc * M) (IZR bias * M) (IZR z))
  (onednn_form (IZR acc * M) (IZR bias * M) 0 (IZR z) B 0)); try assumption; [lia | | | |].
- rewrite value. exact (exact_sum_affine _ _ 0 _ _ _ size none byte).
- intros W. apply rounded with (exact_sum + IZR z); [| apply float32_stands].
  apply sum; [| apply leaf, after_none]. apply leaf. unfold exact_sum.
  replace (IZR acc * M + IZR bias * M) with (IZR (acc + bias) * M) by (rewrite plus_IZR; ring).
  apply product_leaf. exact large.
- rewrite value. rewrite <- (Rplus_0_r (_ + _)). exact (onednn_affine _ _ _ _ _ _ size none byte).
- intros W. apply rounded with (float32 c7 (separate_bias + 0) + IZR z); [| apply float32_stands].
  apply sum; [| apply leaf, after_none]. apply rounded with (separate_bias + 0); [| apply float32_stands].
  apply sum; [| apply leaf; unfold after; rewrite Rminus_diag_eq, !Rabs_R0 by reflexivity; lra].
  apply rounded with (float32 c6 (float32 c4 (IZR acc) * float32 c2 M) + float32 c5 (IZR bias * M)); [| apply float32_stands].
  apply sum; apply leaf; [apply product_leaf; exact large |].
  apply after_rounding; [apply after_none |].
  destruct (Z.eq_dec bias 0) as [-> | other]; [left; ring | right].
  rewrite Rabs_mult, <- abs_IZR. assert (1 <= IZR (Z.abs bias)) by (apply IZR_le; lia).
  apply Rle_trans with (bpow radix2 (-90)); [apply bpow_le; lia |].
  pose proof (bpow_gt_0 radix2 (-90)). nra.
Qed.

Print Assumptions certified.
Print Assumptions affine_on_two_engines.
Print Assumptions Integers.no_overflow.
Print Assumptions Integers.no_saturation.
